package n4

import (
	"sync"
	"time"

	"slicepilot/userplane/internal/histogram"

	"github.com/wmnsk/go-pfcp/message"
)

// Names of the request types in results.
var requestNames = map[uint8]string{
	message.MsgTypeHeartbeatRequest:            "heartbeat",
	message.MsgTypeAssociationSetupRequest:     "association_setup",
	message.MsgTypeAssociationReleaseRequest:   "association_release",
	message.MsgTypeSessionEstablishmentRequest: "session_establishment",
	message.MsgTypeSessionModificationRequest:  "session_modification",
	message.MsgTypeSessionDeletionRequest:      "session_deletion",
}

// RequestStats is what became of one type of request: those answered (whatever the cause), those never answered,
// retransmissions, and the round trips in microseconds.
type RequestStats struct {
	Answered        uint64  `json:"answered"`
	Unanswered      uint64  `json:"unanswered"`
	Retransmissions uint64  `json:"retransmissions"`
	RTTP50us        float64 `json:"rtt_p50_us"`
	RTTP99us        float64 `json:"rtt_p99_us"`
	RTTMaxus        float64 `json:"rtt_max_us"`
}

type requestCounter struct {
	unanswered, retransmissions uint64
	rtt                         histogram.Histogram // ns
}

// Stats counts requests by type.
type Stats struct {
	mu     sync.Mutex
	byType map[uint8]*requestCounter
}

func (s *Stats) update(requestType uint8, change func(*requestCounter)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counter := s.byType[requestType]
	if counter == nil {
		if s.byType == nil {
			s.byType = map[uint8]*requestCounter{}
		}
		counter = &requestCounter{}
		s.byType[requestType] = counter
	}
	change(counter)
}

func (s *Stats) answered(requestType uint8, rtt time.Duration, retransmissions int) {
	s.update(requestType, func(c *requestCounter) {
		c.rtt.Add(rtt.Nanoseconds())
		c.retransmissions += uint64(retransmissions)
	})
}

func (s *Stats) failed(requestType uint8) {
	s.update(requestType, func(c *requestCounter) { c.unanswered++ })
}

// Snapshot is everything counted so far, by the request's name.
func (s *Stats) Snapshot() map[string]RequestStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	result := make(map[string]RequestStats, len(s.byType))
	for requestType, c := range s.byType {
		result[requestNames[requestType]] = RequestStats{
			Answered:        c.rtt.Count(),
			Unanswered:      c.unanswered,
			Retransmissions: c.retransmissions,
			RTTP50us:        c.rtt.Quantile(0.5) / 1e3,
			RTTP99us:        c.rtt.Quantile(0.99) / 1e3,
			RTTMaxus:        float64(c.rtt.Max()) / 1e3,
		}
	}
	return result
}
