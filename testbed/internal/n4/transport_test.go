package n4

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"

	"slicepilot/userplane/internal/pfcp"
)

func TestRequestIsRepeatedUnchangedUntilAnswered(t *testing.T) {
	stub := newStub(t)
	endpoint, _ := newEndpoint(t, func(c *Config) { c.T1, c.N1 = 30*time.Millisecond, 3 })
	dropped := 0
	stub.override(message.MsgTypeAssociationSetupRequest, func(request message.Message) message.Message {
		if dropped < 2 {
			dropped++
			return nil
		}
		return stub.accept(request)
	})
	outcome, err := newPeer(t, endpoint, stub).Associate(ctx)
	if err != nil || outcome.Attempts != 3 || outcome.RTT < 60*time.Millisecond {
		t.Fatalf("%+v, %v: want 3 attempts, and a round trip that counts from the first", outcome, err)
	}
	requests := stub.received(message.MsgTypeAssociationSetupRequest)
	for _, request := range requests {
		if request.Sequence() != requests[0].Sequence() {
			t.Errorf("sequence number %d after %d", request.Sequence(), requests[0].Sequence())
		}
	}
}

func TestUnansweredRequestEnds(t *testing.T) {
	stub := newStub(t)
	endpoint, _ := newEndpoint(t, func(c *Config) { c.T1, c.N1 = 10*time.Millisecond, 2 })
	stub.override(message.MsgTypeAssociationSetupRequest, func(message.Message) message.Message { return nil })
	_, err := newPeer(t, endpoint, stub).Associate(ctx)
	if !errors.Is(err, ErrNoAnswer) {
		t.Fatalf("got %v", err)
	}
	if n := len(stub.received(message.MsgTypeAssociationSetupRequest)); n != 3 {
		t.Errorf("%d transmissions, want 1 and 2 repetitions", n)
	}
}

func TestOnlyTheRightAnswerCounts(t *testing.T) {
	stub, other := newStub(t), newStub(t)
	endpoint, _ := newEndpoint(t, func(c *Config) { c.T1 = 5 * time.Second })
	smf := net.UDPAddrFromAddrPort(endpoint.Local())
	rejection := ie.NewCause(ie.CauseRequestRejected)
	stub.override(message.MsgTypeAssociationSetupRequest, func(request message.Message) message.Message {
		sequence := request.Sequence()
		stub.send(message.NewAssociationSetupResponse(sequence+1, rejection), smf)        // another request's
		stub.send(message.NewAssociationReleaseResponse(sequence, nil, rejection), smf)   // another type
		other.send(message.NewAssociationSetupResponse(sequence, rejection), smf)         // another UPF
		stub.send(message.NewSessionReportResponse(0, 0, 1, sequence, 0, rejection), smf) // another type
		return stub.accept(request)
	})
	if outcome, err := newPeer(t, endpoint, stub).Associate(ctx); err != nil {
		t.Errorf("%+v, %v", outcome, err)
	}
}

func TestOtherVersionEndsTheRequest(t *testing.T) {
	stub := newStub(t)
	endpoint, _ := newEndpoint(t, nil)
	stub.override(message.MsgTypeAssociationSetupRequest, func(request message.Message) message.Message {
		return message.NewVersionNotSupportedResponse(request.Sequence())
	})
	if _, err := newPeer(t, endpoint, stub).Associate(ctx); err == nil || errors.Is(err, ErrNoAnswer) {
		t.Errorf("got %v", err)
	}
}

// exchange sends raw octets to an endpoint and returns the answer; nil: none came.
func exchange(t *testing.T, endpoint *Endpoint, request []byte) []byte {
	t.Helper()
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(endpoint.Local()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return exchangeOn(t, conn, request)
}

func exchangeOn(t *testing.T, conn *net.UDPConn, request []byte) []byte {
	t.Helper()
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 1500)
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	n, err := conn.Read(answer)
	if err != nil {
		return nil
	}
	return answer[:n]
}

func encode(t *testing.T, m message.Message) []byte {
	t.Helper()
	b := make([]byte, m.MarshalLen())
	if err := m.MarshalTo(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOtherVersionsAndRubbish(t *testing.T) {
	endpoint, _ := newEndpoint(t, nil)
	version2 := encode(t, message.NewHeartbeatRequest(0x010203, ie.NewRecoveryTimeStamp(time.Now()), nil))
	version2[0] = 2 << 5
	want := []byte{1 << 5, message.MsgTypeVersionNotSupportedResponse, 0, 4, 1, 2, 3, 0}
	if answer := exchange(t, endpoint, version2); !bytes.Equal(answer, want) {
		t.Errorf("answer to version 2: %x, want %x", answer, want)
	}
	for _, rubbish := range [][]byte{{0x20}, {0x20, 1, 0, 4, 0, 0, 1, 0}, {0x20, 1, 0, 9, 0, 0, 1, 0, 0, 96, 0xff}, bytes.Repeat([]byte{0xff}, 40)} {
		exchange(t, endpoint, rubbish)
	}
	if exchange(t, endpoint, encode(t, message.NewHeartbeatRequest(1, ie.NewRecoveryTimeStamp(time.Now()), nil))) == nil {
		t.Error("no answers after rubbish")
	}
}

func TestRepeatedRequestIsAnsweredAgainAndCarriedOutOnce(t *testing.T) {
	stub, peer, seen := established(t, nil)
	request := encode(t, message.NewAssociationSetupRequest(9, ie.NewNodeID("127.0.0.1", "", ""),
		ie.NewRecoveryTimeStamp(stub.recovery)))
	from := stub.address()
	peer.endpoint.handle(request, from, time.Now())
	peer.endpoint.handle(request, from, time.Now())
	seen.await(t, "associated")
	seen.none(t, "associated", 50*time.Millisecond)
}

func TestAssociationAskedForByTheUPF(t *testing.T) {
	stub, peer, seen := established(t, nil)
	smf := net.UDPAddrFromAddrPort(peer.endpoint.Local())
	stub.set(func() { stub.requests = nil })
	stub.send(message.NewAssociationSetupRequest(3, ie.NewNodeID("127.0.0.1", "", ""),
		ie.NewRecoveryTimeStamp(stub.recovery.Add(time.Minute))), smf)
	seen.await(t, "associated")
	if event := seen.await(t, "recovered"); event.Count != 1 {
		t.Errorf("recovered %+v", event)
	}
	stranger := exchange(t, peer.endpoint, encode(t, message.NewAssociationSetupRequest(4, ie.NewNodeID("127.0.0.1", "", ""),
		ie.NewRecoveryTimeStamp(time.Now()))))
	answer, err := message.Parse(stranger)
	if err != nil {
		t.Fatal(err)
	}
	if cause, _ := answer.(*message.AssociationSetupResponse).Cause.Cause(); cause != ie.CauseRequestRejected {
		t.Errorf("a UPF nobody named was associated: cause %d", cause)
	}
}

func FuzzDatagram(f *testing.F) {
	for _, seed := range []message.Message{
		message.NewHeartbeatRequest(1, ie.NewRecoveryTimeStamp(time.Unix(1e9, 0)), nil),
		message.NewAssociationSetupRequest(2, ie.NewNodeID("127.0.0.1", "", ""), ie.NewRecoveryTimeStamp(time.Unix(1e9, 0))),
		message.NewAssociationUpdateRequest(3, ie.NewNodeID("127.0.0.1", "", "")),
		message.NewNodeReportRequest(4, ie.NewNodeID("127.0.0.1", "", ""), ie.NewNodeReportType(1)),
		message.NewSessionReportRequest(0, 0, 1, 5, 0, ie.NewReportType(0, 0, 1, 1),
			ie.NewUsageReportWithinSessionReportRequest(ie.NewURRID(1), ie.NewVolumeMeasurement(7, 1, 2, 3, 0, 0, 0))),
		message.NewSessionEstablishmentResponse(0, 0, 1, 6, 0, ie.NewCause(1), ie.NewFSEID(1, net.IPv4(1, 2, 3, 4), nil),
			ie.NewCreatedPDR(ie.NewPDRID(uplinkRule), ie.NewFTEID(1, 17, net.IPv4(10, 0, 0, 1), nil, 0))),
		message.NewAssociationSetupResponse(7, ie.NewCause(1), ie.NewUPFunctionFeatures(0x10, 0)),
		message.NewSessionModificationResponse(0, 0, 1, 8, 0, ie.NewCause(ie.CauseRuleCreationModificationFailure),
			ie.NewOffendingIE(ie.MBR), ie.NewFailedRuleID(ie.RuleIDTypeQER, 1)),
		message.NewSessionModificationResponse(0, 0, 1, 9, 0, ie.NewCause(1), ie.NewUsageReportWithinSessionModificationResponse(
			ie.NewURRID(1), ie.NewURSEQN(1), ie.NewUsageReportTrigger(0x80, 0, 0), ie.NewVolumeMeasurement(0x3f, 6, 5, 4, 3, 2, 1))),
	} {
		b := make([]byte, seed.MarshalLen())
		if err := seed.MarshalTo(b); err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	endpoint, err := Listen(Config{Local: newLoopback(), T1: time.Millisecond})
	if err != nil {
		f.Fatal(err)
	}
	defer endpoint.Close()
	peer, err := endpoint.Peer(newDiscard(f))
	if err != nil {
		f.Fatal(err)
	}
	session := &Session{Name: "a", cpSEID: 1}
	peer.sessions["a"] = session
	f.Fuzz(func(_ *testing.T, b []byte) {
		endpoint.handle(b, peer.address, time.Now())
		// What an answer goes through once a request has taken it.
		if m, err := pfcp.Decode(b); err == nil {
			switch answer := m.(type) {
			case *message.AssociationSetupResponse:
				_, _ = verdict("", answer.Cause, nil, nil)
				peer.noteRecovery(answer.RecoveryTimeStamp)
				hasFTUP(answer.UPFunctionFeatures)
			case *message.HeartbeatResponse:
				peer.heard(answer.RecoveryTimeStamp)
			case *message.SessionEstablishmentResponse:
				_, _ = verdict("", answer.Cause, answer.OffendingIE, answer.FailedRuleID)
				_, _ = upSEID(answer.UPFSEID)
				_, _, _ = chosenTunnel(answer.CreatedPDR)
			case *message.SessionModificationResponse:
				_, _ = verdict("", answer.Cause, answer.OffendingIE, answer.FailedRuleID)
			case *message.SessionDeletionResponse:
				_, _ = verdict("", answer.Cause, answer.OffendingIE, nil)
			}
		}
	})
}
