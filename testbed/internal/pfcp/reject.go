package pfcp

import (
	"fmt"

	"github.com/wmnsk/go-pfcp/ie"
)

// Reject is why a request is refused: what the answer's Cause, Offending IE and Failed Rule ID say (clause 8.2.1).
type Reject struct {
	Cause     uint8
	Offending uint16 // IE type, 0 for none
	Rule      *RuleID
	Reason    string // for the log
}

// RuleID names one rule of a session; Kind is one of ie.RuleIDTypePDR and its siblings (clause 8.2.80).
type RuleID struct {
	Kind uint8
	ID   uint32
}

func (r *Reject) Error() string {
	text := fmt.Sprintf("cause %d: %s", r.Cause, r.Reason)
	if r.Offending != 0 {
		text += fmt.Sprintf(" (IE type %d)", r.Offending)
	}
	return text
}

// IEs returns the information elements that carry the rejection, Cause first.
func (r *Reject) IEs() []*ie.IE {
	ies := []*ie.IE{ie.NewCause(r.Cause)}
	if r.Offending != 0 {
		ies = append(ies, ie.NewOffendingIE(r.Offending))
	}
	if r.Rule != nil {
		ies = append(ies, ie.NewFailedRuleID(r.Rule.Kind, r.Rule.ID))
	}
	return ies
}

// Missing rejects a request that lacks a mandatory information element.
func Missing(kind uint16, reason string) *Reject {
	return &Reject{Cause: ie.CauseMandatoryIEMissing, Offending: kind, Reason: reason + " missing"}
}

// Incorrect rejects a request for the value of an information element.
func Incorrect(kind uint16, reason string) *Reject {
	return &Reject{Cause: ie.CauseMandatoryIEIncorrect, Offending: kind, Reason: reason}
}

// RuleFailure rejects a request because one rule cannot be installed.
func RuleFailure(rule RuleID, offending uint16, reason string) *Reject {
	return &Reject{Cause: ie.CauseRuleCreationModificationFailure, Offending: offending, Rule: &rule, Reason: reason}
}
