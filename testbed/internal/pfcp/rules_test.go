package pfcp

import (
	"net"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/wmnsk/go-pfcp/ie"
	"github.com/wmnsk/go-pfcp/message"
)

// decoded sends an element through octets, as it would arrive.
func decoded(t testing.TB, e *ie.IE) *ie.IE {
	t.Helper()
	b, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	e, err = ie.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func examplePDR() *ie.IE {
	return ie.NewCreatePDR(
		ie.NewPDRID(1), ie.NewPrecedence(255),
		ie.NewPDI(
			ie.NewSourceInterface(ie.SrcInterfaceAccess), ie.NewFTEID(0x01, 0x1234, net.IPv4(10, 100, 0, 2), nil, 0),
			ie.NewNetworkInstance("internet"), ie.NewUEIPAddress(0x02, "10.60.0.1", "", 0, 0), ie.NewQFI(9), ie.NewQFI(5),
			ie.NewSDFFilter("permit out ip from any to assigned", "", "", "", 0),
		),
		ie.NewOuterHeaderRemoval(0, 0), ie.NewFARID(1), ie.NewQERID(1), ie.NewQERID(2), ie.NewURRID(7),
	)
}

func exampleMessages() []message.Message {
	return []message.Message{
		message.NewSessionEstablishmentRequest(0, 0, 0, 2, 0,
			ie.NewNodeID("10.101.0.1", "", ""), ie.NewFSEID(1, net.IPv4(10, 101, 0, 1), nil), examplePDR(),
			ie.NewCreateFAR(ie.NewFARID(1), ie.NewApplyAction(0x02, 0), ie.NewForwardingParameters(ie.NewDestinationInterface(ie.DstInterfaceCore))),
			ie.NewCreateQER(ie.NewQERID(1), ie.NewGateStatus(0, 0), ie.NewMBR(1000, 2000), ie.NewQFI(9)),
			ie.NewCreateURR(ie.NewURRID(7), ie.NewMeasurementMethod(0, 1, 1), ie.NewReportingTriggers(3, 1, 0),
				ie.NewVolumeThreshold(7, 1000, 600, 500), ie.NewMeasurementPeriod(time.Minute)),
		),
		message.NewSessionModificationRequest(0, 0, 99, 3, 0,
			ie.NewUpdateFAR(ie.NewFARID(1), ie.NewApplyAction(0x02, 0), ie.NewUpdateForwardingParameters(
				ie.NewOuterHeaderCreation(0x0100, 5, "10.100.0.1", "", 0, 0, 0), ie.NewPFCPSMReqFlags(0x02))),
			ie.NewRemovePDR(ie.NewPDRID(4)), ie.NewQueryURR(ie.NewURRID(7)),
		),
		message.NewAssociationSetupRequest(1, ie.NewNodeID("", "", "smf.example"), ie.NewRecoveryTimeStamp(time.Unix(1e9, 0))),
	}
}

func TestSDFFilters(t *testing.T) {
	all := ie.NewSDFFilter("permit out  ip from any to assigned", "", "", "", 0)
	video := ie.NewSDFFilter("permit out 17 from 10.103.0.0/16 6000 to assigned", "", "", "", 77)
	for name, test := range map[string]struct {
		filters []*ie.IE
		some    bool
	}{
		"none": {nil, false}, "all packets": {[]*ie.IE{all}, false}, "one flow": {[]*ie.IE{video}, true},
		"a flow, or all packets": {[]*ie.IE{video, all}, false},
		"a traffic class":        {[]*ie.IE{ie.NewSDFFilter("permit out ip from any to any", "ab", "", "", 0)}, true},
		"another rule's filter":  {[]*ie.IE{ie.NewSDFFilter("", "", "", "", 77)}, true},
	} {
		elements := append([]*ie.IE{ie.NewSourceInterface(ie.SrcInterfaceAccess)}, test.filters...)
		pdr, reject := CreatePDR(decoded(t, ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(1), ie.NewPDI(elements...))))
		if reject != nil || pdr.PDI.SomeFlows != test.some {
			t.Errorf("%s: %+v, %v", name, pdr.PDI, reject)
		}
	}
}

func TestCreatePDR(t *testing.T) {
	got, reject := CreatePDR(decoded(t, examplePDR()))
	if reject != nil {
		t.Fatal(reject)
	}
	want := PDR{
		ID: 1, Precedence: 255, FAR: 1, QERs: []uint32{1, 2},
		PDI: PDI{
			Source: Access, UE4: netip.MustParsePrefix("10.60.0.1/32"), QFIs: 1<<9 | 1<<5,
			Tunnel: &LocalTunnel{TEID: 0x1234, IPv4: netip.MustParseAddr("10.100.0.2"), ChooseID: -1, WantsIPv4: true},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestUpdatePDR(t *testing.T) {
	before, reject := CreatePDR(decoded(t, examplePDR()))
	if reject != nil {
		t.Fatal(reject)
	}
	after, reject := before.Update(decoded(t, ie.NewUpdatePDR(ie.NewPDRID(1), ie.NewPrecedence(1), ie.NewQERID(3))))
	if reject != nil {
		t.Fatal(reject)
	}
	want := before
	want.Precedence, want.QERs = 1, []uint32{3}
	if !reflect.DeepEqual(after, want) {
		t.Errorf("got %+v\nwant %+v", after, want)
	}
	// Open5GS sends the whole PDI again, with the CHOOSE flag that it began with.
	after, reject = before.Update(decoded(t, ie.NewUpdatePDR(ie.NewPDRID(1), ie.NewPDI(
		ie.NewSourceInterface(ie.SrcInterfaceAccess), ie.NewFTEID(0x0d, 0, nil, nil, 5)))))
	if reject != nil || after.PDI.Tunnel.TEID != 0x1234 || after.PDI.Tunnel.Choose || after.PDI.QFIs != 0 {
		t.Errorf("got %+v, %v; want the TEID to stay and the rest of the PDI to be new", after.PDI, reject)
	}
}

// rejection is the answer to the CP function.
type rejection struct {
	cause     uint8
	offending uint16
	rule      *RuleID
}

func checkReject(t *testing.T, name string, got *Reject, want rejection) {
	t.Helper()
	if got == nil {
		t.Errorf("%s: accepted", name)
		return
	}
	if got.Cause != want.cause || got.Offending != want.offending || !reflect.DeepEqual(got.Rule, want.rule) {
		t.Errorf("%s: got cause %d, offending %d, rule %+v; want %+v (rule %+v)", name, got.Cause, got.Offending, got.Rule, want, want.rule)
	}
}

func TestCreatePDRRefuses(t *testing.T) {
	pdr := &RuleID{ie.RuleIDTypePDR, 1}
	access := ie.NewSourceInterface(ie.SrcInterfaceAccess)
	withPDI := func(ies ...*ie.IE) *ie.IE {
		return ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(1), ie.NewPDI(ies...))
	}
	for name, test := range map[string]struct {
		element *ie.IE
		want    rejection
	}{
		"no PDR ID":           {ie.NewCreatePDR(ie.NewPrecedence(1), ie.NewPDI(access)), rejection{ie.CauseMandatoryIEMissing, ie.PDRID, nil}},
		"no precedence":       {ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPDI(access)), rejection{ie.CauseMandatoryIEMissing, ie.Precedence, nil}},
		"no PDI":              {ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(1)), rejection{ie.CauseMandatoryIEMissing, ie.PDI, nil}},
		"no source interface": {withPDI(ie.NewQFI(1)), rejection{ie.CauseMandatoryIEMissing, ie.SourceInterface, nil}},
		"source interface 5":  {withPDI(ie.NewSourceInterface(5)), rejection{ie.CauseMandatoryIEIncorrect, ie.SourceInterface, nil}},
		"empty precedence": {
			ie.NewCreatePDR(ie.NewPDRID(1), ie.New(ie.Precedence, []byte{1}), ie.NewPDI(access)),
			rejection{ie.CauseInvalidLength, ie.Precedence, nil},
		},
		"SDF filter cut short": {
			withPDI(access, ie.New(ie.SDFFilter, []byte{1, 0, 0})), rejection{ie.CauseInvalidLength, ie.SDFFilter, nil},
		},
		"application": {withPDI(access, ie.NewApplicationID("x")), rejection{ie.CauseRuleCreationModificationFailure, ie.ApplicationID, pdr}},
		"F-TEID of no family": {
			withPDI(access, ie.New(ie.FTEID, []byte{0, 0, 0, 0, 1})), rejection{ie.CauseMandatoryIEIncorrect, ie.FTEID, nil},
		},
		"F-TEID cut short": {withPDI(access, ie.New(ie.FTEID, []byte{1, 0, 0, 0, 1, 10})), rejection{ie.CauseInvalidLength, ie.FTEID, nil}},
		"UE address to be chosen": {
			withPDI(access, ie.New(ie.UEIPAddress, []byte{0x12})), rejection{ie.CauseServiceNotSupported, ie.UEIPAddress, nil},
		},
		"UE address cut short": {withPDI(access, ie.New(ie.UEIPAddress, []byte{0x02, 10, 60})), rejection{ie.CauseInvalidLength, ie.UEIPAddress, nil}},
		"removal of a VLAN tag": {
			ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(1), ie.NewPDI(access), ie.NewOuterHeaderRemoval(3, 0)),
			rejection{ie.CauseRuleCreationModificationFailure, ie.OuterHeaderRemoval, pdr},
		},
		"predefined rules": {
			ie.NewCreatePDR(ie.NewPDRID(1), ie.NewPrecedence(1), ie.NewPDI(access), ie.NewActivatePredefinedRules("x")),
			rejection{ie.CauseRuleCreationModificationFailure, ie.ActivatePredefinedRules, pdr},
		},
	} {
		_, reject := CreatePDR(decoded(t, test.element))
		checkReject(t, name, reject, test.want)
	}
}

// The elements are written out from TS 29.244 clause 8.2.62.
func TestUEAddress(t *testing.T) {
	for _, test := range []struct{ name, payload, v4, v6 string }{
		{"IPv4", "02" + "0a3c0001", "10.60.0.1/32", ""},
		{"IPv4, destination", "06" + "0a3c0001", "10.60.0.1/32", ""},
		{"IPv6", "01" + "20010db8006000010000000000000001", "", "2001:db8:60:1::/64"},
		{"both", "03" + "0a3c0001" + "20010db8006000010000000000000000", "10.60.0.1/32", "2001:db8:60:1::/64"},
		{"prefix length 128", "41" + "20010db8006000010000000000000001" + "80", "", "2001:db8:60:1::1/128"},
	} {
		v4, v6, reject := parseUEAddress(ie.New(ie.UEIPAddress, octets(t, test.payload)))
		text := func(p netip.Prefix) string {
			if !p.IsValid() {
				return ""
			}
			return p.String()
		}
		if reject != nil || text(v4) != test.v4 || text(v6) != test.v6 {
			t.Errorf("%s: got %v %v %v", test.name, v4, v6, reject)
		}
	}
	if _, _, reject := parseUEAddress(ie.New(ie.UEIPAddress, octets(t, "49"+"20010db8006000010000000000000001"+"0838"))); reject == nil {
		t.Error("prefix delegation was accepted")
	}
}

func TestFAR(t *testing.T) {
	core := ie.NewForwardingParameters(ie.NewDestinationInterface(ie.DstInterfaceCore))
	for name, action := range map[string]*ie.IE{"one octet": ie.NewApplyAction(0x02), "two octets": ie.NewApplyAction(0x02, 0x00)} {
		far, reject := CreateFAR(decoded(t, ie.NewCreateFAR(ie.NewFARID(1), action, core)))
		if reject != nil || far.Action != ActionForward || far.Destination != Core {
			t.Errorf("Apply Action of %s: %+v, %v", name, far, reject)
		}
	}

	// As an SMF does it: buffer until the access network is known, forward, buffer when the terminal is idle.
	far, reject := CreateFAR(decoded(t, ie.NewCreateFAR(ie.NewFARID(2), ie.NewApplyAction(0x0c, 0), ie.NewBARID(1))))
	if reject != nil || far.Action&actionKind != ActionBuffer {
		t.Fatalf("%+v, %v", far, reject)
	}
	far, reject = far.Update(decoded(t, ie.NewUpdateFAR(ie.NewFARID(2), ie.NewApplyAction(0x02, 0), ie.NewUpdateForwardingParameters(
		ie.NewDestinationInterface(ie.DstInterfaceAccess), ie.NewOuterHeaderCreation(0x0100, 77, "10.100.0.1", "", 0, 0, 0)))))
	if want := (Tunnel{77, netip.MustParseAddr("10.100.0.1")}); reject != nil || far.Peer != want {
		t.Fatalf("%+v, %v", far, reject)
	}
	far, reject = far.Update(decoded(t, ie.NewUpdateFAR(ie.NewFARID(2), ie.NewUpdateForwardingParameters(
		ie.NewOuterHeaderCreation(0x0200, 78, "", "2001:db8::1", 0, 0, 0), ie.NewPFCPSMReqFlags(0x02)))))
	if reject != nil || far.Peer.Address.String() != "2001:db8::1" || far.Action != ActionForward {
		t.Fatalf("%+v, %v", far, reject)
	}
}

func TestFARRefuses(t *testing.T) {
	far := &RuleID{ie.RuleIDTypeFAR, 1}
	withAction := func(action ...uint8) *ie.IE {
		return ie.NewCreateFAR(ie.NewFARID(1), ie.NewApplyAction(action...), ie.NewForwardingParameters(ie.NewDestinationInterface(ie.DstInterfaceCore)))
	}
	withParameters := func(ies ...*ie.IE) *ie.IE {
		return ie.NewCreateFAR(ie.NewFARID(1), ie.NewApplyAction(2, 0), ie.NewForwardingParameters(ies...))
	}
	core := ie.NewDestinationInterface(ie.DstInterfaceCore)
	for name, test := range map[string]struct {
		element *ie.IE
		want    rejection
	}{
		"no FAR ID":                 {ie.NewCreateFAR(ie.NewApplyAction(1, 0)), rejection{ie.CauseMandatoryIEMissing, ie.FARID, nil}},
		"no action":                 {ie.NewCreateFAR(ie.NewFARID(1)), rejection{ie.CauseMandatoryIEMissing, ie.ApplyAction, nil}},
		"nothing to do":             {withAction(0, 0), rejection{ie.CauseMandatoryIEIncorrect, ie.ApplyAction, nil}},
		"drop and forward":          {withAction(3, 0), rejection{ie.CauseMandatoryIEIncorrect, ie.ApplyAction, nil}},
		"empty action":              {withAction(), rejection{ie.CauseInvalidLength, ie.ApplyAction, nil}},
		"no forwarding parameters":  {ie.NewCreateFAR(ie.NewFARID(1), ie.NewApplyAction(2, 0)), rejection{ie.CauseConditionalIEMissing, ie.ForwardingParameters, far}},
		"no destination interface":  {withParameters(ie.NewNetworkInstance("x")), rejection{ie.CauseMandatoryIEMissing, ie.DestinationInterface, nil}},
		"forwarding policy":         {withParameters(core, ie.NewForwardingPolicy("x")), rejection{ie.CauseInvalidForwardingPolicy, ie.ForwardingPolicy, far}},
		"outer header without GTPU": {withParameters(core, ie.NewOuterHeaderCreation(0x0400, 0, "10.0.0.1", "", 9, 0, 0)), rejection{ie.CauseRuleCreationModificationFailure, ie.OuterHeaderCreation, far}},
		"duplication": {
			ie.NewCreateFAR(ie.NewFARID(1), ie.NewApplyAction(1, 0), ie.NewDuplicatingParameters(core)),
			rejection{ie.CauseRuleCreationModificationFailure, ie.DuplicatingParameters, far},
		},
	} {
		_, reject := CreateFAR(decoded(t, test.element))
		checkReject(t, name, reject, test.want)
	}
}
