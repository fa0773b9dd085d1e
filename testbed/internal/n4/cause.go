package n4

import (
	"fmt"
	"strings"

	"github.com/wmnsk/go-pfcp/ie"
)

// Texts of the cause values (clause 8.2.1).
var causeTexts = map[uint8]string{
	ie.CauseRequestAccepted:                 "request accepted",
	2:                                       "more usage report to send",
	3:                                       "request partially accepted",
	ie.CauseRequestRejected:                 "request rejected (reason not specified)",
	ie.CauseSessionContextNotFound:          "session context not found",
	ie.CauseMandatoryIEMissing:              "mandatory IE missing",
	ie.CauseConditionalIEMissing:            "conditional IE missing",
	ie.CauseInvalidLength:                   "invalid length",
	ie.CauseMandatoryIEIncorrect:            "mandatory IE incorrect",
	ie.CauseInvalidForwardingPolicy:         "invalid forwarding policy",
	ie.CauseInvalidFTEIDAllocationOption:    "invalid F-TEID allocation option",
	ie.CauseNoEstablishedPFCPAssociation:    "no established PFCP association",
	ie.CauseRuleCreationModificationFailure: "rule creation/modification failure",
	ie.CausePFCPEntityInCongestion:          "PFCP entity in congestion",
	ie.CauseNoResourcesAvailable:            "no resources available",
	ie.CauseServiceNotSupported:             "service not supported",
	ie.CauseSystemFailure:                   "system failure",
	ie.CauseRedirectionRequested:            "redirection requested",
}

// CauseText is a cause value in words.
func CauseText(cause uint8) string {
	if text, known := causeTexts[cause]; known {
		return text
	}
	return fmt.Sprintf("cause %d", cause)
}

// accepted reports whether a cause is one of acceptance: 1 to 63 are (clause 8.2.1).
func accepted(cause uint8) bool { return cause >= 1 && cause <= 63 }

// RejectedError is a UPF's refusal: its cause, and what it says about where the fault lies.
type RejectedError struct {
	Message     string
	Cause       uint8
	OffendingIE uint16 // type of the IE; 0: none named
	FailedRule  string // such as "PDR 1"; empty: none named
}

func (e *RejectedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s (cause %d)", e.Message, CauseText(e.Cause), e.Cause)
	if e.OffendingIE != 0 {
		fmt.Fprintf(&b, ", offending IE type %d", e.OffendingIE)
	}
	if e.FailedRule != "" {
		fmt.Fprintf(&b, ", failed rule %s", e.FailedRule)
	}
	return b.String()
}

// verdict reads the cause of an answer; the other two IEs may be nil.
func verdict(name string, cause, offending, failed *ie.IE) (uint8, error) {
	if cause == nil {
		return 0, fmt.Errorf("%s: the answer has no Cause, which is mandatory", name)
	}
	value, err := cause.Cause()
	if err != nil {
		return 0, fmt.Errorf("%s: unreadable Cause: %w", name, err)
	}
	if accepted(value) {
		return value, nil
	}
	rejected := &RejectedError{Message: name, Cause: value}
	if offending != nil {
		rejected.OffendingIE, _ = offending.OffendingIE()
	}
	if failed != nil {
		rejected.FailedRule = failedRule(failed)
	}
	return value, rejected
}

// failedRule reads a Failed Rule ID (clause 8.2.80): the rule's kind in the lower bits of the first octet, then its
// identifier, whose length depends on the kind.
func failedRule(failed *ie.IE) string {
	b := failed.Payload
	if len(b) < 2 {
		return "unreadable"
	}
	kinds := []string{"PDR", "FAR", "QER", "URR", "BAR", "MAR", "SRR"}
	kind := int(b[0] & 0x1f)
	if kind >= len(kinds) {
		return fmt.Sprintf("of kind %d", kind)
	}
	id := uint64(0)
	for _, octet := range b[1:min(len(b), 5)] {
		id = id<<8 | uint64(octet)
	}
	return fmt.Sprintf("%s %d", kinds[kind], id)
}
