package n4

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
)

var ctx = context.Background()

func testSpec() SessionSpec {
	sst := uint8(1)
	return SessionSpec{
		Name: "a", UE: netip.MustParseAddr("10.60.0.2"), TEID: 17, N3: netip.MustParseAddr("10.100.0.2"), QFI: 9,
		GNB: netip.MustParseAddr("10.100.0.1"), GNBTEID: 1001, SST: &sst, SD: 0x010203, DNN: "internet",
	}
}

// established is an associated peer with one session.
func established(t *testing.T, change func(*Config)) (*stubUPF, *Peer, *events) {
	t.Helper()
	stub := newStub(t)
	endpoint, seen := newEndpoint(t, change)
	peer := newPeer(t, endpoint, stub)
	if _, err := peer.Associate(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := peer.Establish(ctx, testSpec()); err != nil {
		t.Fatal(err)
	}
	return stub, peer, seen
}

func TestChooseNeedsTheFeature(t *testing.T) {
	stub := newStub(t)
	stub.set(func() { stub.features = 0 })
	endpoint, _ := newEndpoint(t, nil)
	peer := newPeer(t, endpoint, stub)
	if _, err := peer.Associate(ctx); err != nil {
		t.Fatal(err)
	}
	spec := testSpec()
	spec.TEID = 0
	if _, err := peer.Establish(ctx, spec); err == nil || !strings.Contains(err.Error(), "FTUP") {
		t.Errorf("got %v, want an error about FTUP", err)
	}
	if sent := stub.received(message.MsgTypeSessionEstablishmentRequest); len(sent) != 0 {
		t.Error("the request was sent all the same")
	}
}

func TestRejectionSaysWhere(t *testing.T) {
	stub, peer, _ := established(t, nil)
	stub.override(message.MsgTypeSessionEstablishmentRequest, func(request message.Message) message.Message {
		return message.NewSessionEstablishmentResponse(0, 0, 0, request.Sequence(), 0, ie.NewNodeID("127.0.0.1", "", ""),
			ie.NewCause(ie.CauseRuleCreationModificationFailure), ie.NewOffendingIE(ie.MBR), ie.NewFailedRuleID(2, 1))
	})
	spec := testSpec()
	spec.Name = "b"
	outcome, err := peer.Establish(ctx, spec)
	var rejected *RejectedError
	if !errors.As(err, &rejected) || rejected.OffendingIE != ie.MBR || rejected.FailedRule != "QER 1" {
		t.Fatalf("got %v", err)
	}
	if outcome.Cause != ie.CauseRuleCreationModificationFailure || !strings.Contains(err.Error(), "failure (cause 73)") {
		t.Errorf("cause %d: %v", outcome.Cause, err)
	}
	if names := peer.Sessions(); len(names) != 1 {
		t.Errorf("sessions %v, want a alone", names)
	}
}

func TestRestartIsRepaired(t *testing.T) {
	stub, peer, seen := established(t, func(c *Config) { c.Heartbeat = 20 * time.Millisecond })
	rate, closed := 33.0, true
	if _, err := peer.Modify(ctx, "a", Change{MBRDownlinkMbps: &rate, CloseUplink: &closed}); err != nil {
		t.Fatal(err)
	}
	stub.set(func() { stub.recovery = stub.recovery.Add(time.Minute); stub.requests = nil })
	seen.await(t, "restart")
	if event := seen.await(t, "recovered"); event.Count != 1 || event.Failed != 0 {
		t.Errorf("recovered %+v", event)
	}
	if len(stub.received(message.MsgTypeAssociationSetupRequest)) != 1 {
		t.Error("the association was not set up anew, once")
	}
	again := stub.received(message.MsgTypeSessionEstablishmentRequest)[0].(*message.SessionEstablishmentRequest)
	mbr, _ := again.CreateQER[0].MBRDL()
	gates, _ := again.CreateQER[0].GateStatus()
	if mbr != 33_000 || gates != ie.GateStatusClosed<<2 {
		t.Errorf("established again with MBR %d and gates %#x: the modification was forgotten", mbr, gates)
	}
	if _, err := peer.Modify(ctx, "a", Change{CloseUplink: &closed}); err != nil {
		t.Fatal(err)
	}
	modification := stub.received(message.MsgTypeSessionModificationRequest)[0]
	if modification.SEID() != 102 {
		t.Errorf("modification carries SEID %d, the UPF's is 102 now", modification.SEID())
	}
}

func TestEarlierRecoveryTimeStampIsNoRestart(t *testing.T) {
	stub, _, seen := established(t, func(c *Config) { c.Heartbeat = 10 * time.Millisecond })
	stub.set(func() { stub.recovery = stub.recovery.Add(-time.Minute) })
	seen.none(t, "restart", 100*time.Millisecond)
}

func TestLostContextIsRepaired(t *testing.T) {
	stub, peer, seen := established(t, nil)
	closed := true
	stub.override(message.MsgTypeSessionModificationRequest, func(request message.Message) message.Message {
		return message.NewSessionModificationResponse(0, 0, 0, request.Sequence(), 0,
			ie.NewCause(ie.CauseSessionContextNotFound))
	})
	if _, err := peer.Modify(ctx, "a", Change{CloseUplink: &closed}); err == nil {
		t.Fatal("accepted")
	}
	seen.await(t, "context_lost")
	if event := seen.await(t, "recovered"); event.Count != 1 {
		t.Errorf("recovered %+v", event)
	}
}

// Open5GS answers no heartbeat of a peer that it has no association with.
func TestRestartedPeerThatIgnoresStrangersIsAssociatedAgain(t *testing.T) {
	stub, _, seen := established(t, func(c *Config) {
		c.Heartbeat, c.T1, c.N1 = 20*time.Millisecond, 20*time.Millisecond, 1
	})
	known, silent := true, true
	stub.set(func() {
		known = false
		stub.answer[message.MsgTypeHeartbeatRequest] = func(request message.Message) message.Message {
			if !known {
				return nil
			}
			return stub.accept(request)
		}
		stub.answer[message.MsgTypeAssociationSetupRequest] = func(request message.Message) message.Message {
			if silent {
				return nil
			}
			known = true
			return stub.accept(request)
		}
	})
	seen.await(t, "peer_lost")
	seen.none(t, "recovery_failed", 200*time.Millisecond)
	stub.set(func() { silent, stub.recovery = false, stub.recovery.Add(time.Minute) })
	seen.await(t, "peer_back")
	if event := seen.await(t, "recovered"); event.Count != 1 || event.Failed != 0 {
		t.Errorf("recovered %+v", event)
	}
}

// Open5GS buffers all uplink of a session that does not say which reference points its interfaces are.
func TestInterfacesAreNamed(t *testing.T) {
	stub, _, _ := established(t, nil)
	request := stub.received(message.MsgTypeSessionEstablishmentRequest)[0].(*message.SessionEstablishmentRequest)
	var seen []uint8
	note := func(group []*ie.IE, err error) {
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range group {
			if e.Type == ie.TGPPInterfaceType {
				seen = append(seen, e.Payload[0])
			}
		}
	}
	for _, pdr := range request.CreatePDR {
		note(pdr.PDI())
	}
	for _, far := range request.CreateFAR {
		note(far.ForwardingParameters())
	}
	const n3, n6 = 11, 17 // table 8.2.118-1
	if want := []uint8{n3, n6, n6, n3}; !slices.Equal(seen, want) {
		t.Errorf("interface types %v, want %v", seen, want)
	}
}

func TestReleaseOfAPeerThatDoesNotKnowItIsOverAtOnce(t *testing.T) {
	stub, peer, _ := established(t, func(c *Config) { c.T1, c.N1 = 100*time.Millisecond, 5 })
	stub.override(message.MsgTypeAssociationReleaseRequest, func(message.Message) message.Message { return nil })
	start := time.Now()
	_, err := peer.Release(ctx)
	if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "may not implement") {
		t.Errorf("release: %v", err)
	}
	if took := time.Since(start); took > 300*time.Millisecond || peer.Associated() {
		t.Errorf("after %v, associated: %v", took, peer.Associated())
	}
	if _, err := peer.Associate(ctx); err != nil {
		t.Errorf("associating again: %v", err)
	}
}

func TestShutdownDoesNotWaitForTheSilent(t *testing.T) {
	stub, peer, _ := established(t, nil)
	stub.override(message.MsgTypeSessionDeletionRequest, func(message.Message) message.Message { return nil })
	start := time.Now()
	if err := peer.Shutdown(ctx); !errors.Is(err, ErrNoAnswer) || time.Since(start) > 2*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}
