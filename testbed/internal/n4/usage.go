package n4

import "github.com/wmnsk/go-pfcp/ie"

// Usage is what a URR has measured since its last report (clause 5.2.2.2.1), in octets and, where the UPF counts them,
// packets.
type Usage struct {
	URR             uint32 `json:"urr"`
	Sequence        uint32 `json:"sequence"`
	TotalBytes      uint64 `json:"total_bytes"`
	UplinkBytes     uint64 `json:"uplink_bytes"`
	DownlinkBytes   uint64 `json:"downlink_bytes"`
	TotalPackets    uint64 `json:"total_packets,omitempty"`
	UplinkPackets   uint64 `json:"uplink_packets,omitempty"`
	DownlinkPackets uint64 `json:"downlink_packets,omitempty"`
}

// readUsage reads Usage Reports; parts that cannot be read stay zero.
func readUsage(reports []*ie.IE) []Usage {
	var found []Usage
	for _, report := range reports {
		parts, err := report.UsageReport()
		if err != nil {
			continue
		}
		usage := Usage{}
		for _, part := range parts {
			switch part.Type {
			case ie.URRID:
				usage.URR, _ = part.URRID()
			case ie.URSEQN:
				usage.Sequence, _ = part.URSEQN()
			case ie.VolumeMeasurement:
				if volume, err := part.VolumeMeasurement(); err == nil {
					usage.TotalBytes = volume.TotalVolume
					usage.UplinkBytes = volume.UplinkVolume
					usage.DownlinkBytes = volume.DownlinkVolume
					usage.TotalPackets = volume.TotalNumberOfPackets
					usage.UplinkPackets = volume.UplinkNumberOfPackets
					usage.DownlinkPackets = volume.DownlinkNumberOfPackets
				}
			}
		}
		found = append(found, usage)
	}
	return found
}
