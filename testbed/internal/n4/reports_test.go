package n4

import (
	"testing"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
)

// What users of other UPFs and SMFs have reported of answers (docs/reports.md).

// A UPF without features says nothing of them, and has nothing to tell of tunnels that it was given (open5gs/open5gs#1466).
func TestAUPFWithoutFeaturesIsGivenItsTunnels(t *testing.T) {
	stub := newStub(t)
	stub.override(message.MsgTypeAssociationSetupRequest, func(request message.Message) message.Message {
		return message.NewAssociationSetupResponse(request.Sequence(), ie.NewNodeID("127.0.0.1", "", ""),
			ie.NewCause(ie.CauseRequestAccepted), ie.NewRecoveryTimeStamp(stub.recovery))
	})
	stub.override(message.MsgTypeSessionEstablishmentRequest, func(request message.Message) message.Message {
		cp, err := request.(*message.SessionEstablishmentRequest).CPFSEID.FSEID()
		if err != nil {
			t.Errorf("CP F-SEID: %v", err)
			return nil
		}
		return message.NewSessionEstablishmentResponse(0, 0, cp.SEID, request.Sequence(), 0, ie.NewNodeID("127.0.0.1", "", ""),
			ie.NewCause(ie.CauseRequestAccepted), ie.NewFSEID(7, []byte{127, 0, 0, 1}, nil))
	})
	endpoint, _ := newEndpoint(t, nil)
	peer := newPeer(t, endpoint, stub)
	if _, err := peer.Associate(ctx); err != nil {
		t.Fatal(err)
	}
	if outcome, err := peer.Establish(ctx, testSpec()); err != nil || outcome.Cause != ie.CauseRequestAccepted {
		t.Fatalf("establish: %+v, %v", outcome, err)
	}
}

// An answer without a cause is an error, and no end of the SMF (free5gc/free5gc#817).
func TestAnswersWithoutACause(t *testing.T) {
	stub, peer, _ := established(t, nil)
	stub.override(message.MsgTypeSessionDeletionRequest, func(request message.Message) message.Message {
		return message.NewSessionDeletionResponse(0, 0, 1, request.Sequence(), 0)
	})
	stub.override(message.MsgTypeSessionModificationRequest, func(request message.Message) message.Message {
		return message.NewSessionModificationResponse(0, 0, 1, request.Sequence(), 0)
	})
	closed := true
	if outcome, err := peer.Modify(ctx, "a", Change{CloseDownlink: &closed}); err == nil {
		t.Errorf("a change without a cause was taken for %+v", outcome)
	}
	if outcome, err := peer.Delete(ctx, "a"); err == nil {
		t.Errorf("a deletion without a cause was taken for %+v", outcome)
	}
}
