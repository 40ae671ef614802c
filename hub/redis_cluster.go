package hub

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
)

// Cluster clients, such as go-redis' ClusterClient, ask which node owns which hash slot. Each hub answers that it is
// the only node and owns all slots. This also works for joined hubs (Hub.Cluster), because each of them accepts every
// command. The hub does not call itself a cluster in INFO and HELLO, because other clients would change their behavior.

const clusterSlots = 16_384

// clusterNode describes the hub in replies to Redis CLUSTER commands.
type clusterNode struct {
	id, host  string
	port      int
	portField string // name of the field for the port in CLUSTER SHARDS
}

func (b *commandBatch) thisHubAsClusterNode() clusterNode {
	addr, _ := b.ref.LocalAddr()
	hash := sha256.Sum256([]byte(addr.String()))
	n := clusterNode{id: hex.EncodeToString(hash[:20]), port: int(addr.Port()), portField: "port"}
	if ip := addr.Addr().Unmap(); ip != (netip.Addr{}) {
		n.host = ip.String()
	}
	if b.conn.TLS() != nil {
		n.portField = "tls-port"
	}
	return n
}

func (b *commandBatch) handleClusterSlots() {
	n := b.thisHubAsClusterNode()
	b.writeArrayHeader(1)
	b.writeArrayHeader(3)
	b.writeBulksAndInts(0, clusterSlots-1)
	b.writeArrayHeader(4)
	b.writeBulksAndInts(n.host, n.port, n.id)
	b.writeMapHeader(0)
}

func (b *commandBatch) handleClusterShards() {
	n := b.thisHubAsClusterNode()
	b.writeArrayHeader(1)
	b.writeMapHeader(2)
	b.writeBulk("slots")
	b.writeArrayHeader(2)
	b.writeBulksAndInts(0, clusterSlots-1, "nodes")
	b.writeArrayHeader(1)
	b.writeMapHeader(7)
	b.writeBulksAndInts("id", n.id, n.portField, n.port, "ip", n.host, "endpoint", n.host, "role", "master",
		"replication-offset", 0, "health", "online")
}

func (b *commandBatch) handleClusterNodes() {
	n := b.thisHubAsClusterNode()
	b.writeVerbatim(fmt.Sprintf("%s %s:%d@%d myself,master - 0 0 1 connected 0-%d\n", n.id, n.host, n.port, n.port, clusterSlots-1))
}

func (b *commandBatch) handleClusterInfo() {
	b.writeVerbatim(fmt.Sprintf("cluster_state:ok\r\ncluster_slots_assigned:%[1]d\r\ncluster_slots_ok:%[1]d\r\ncluster_slots_pfail:0\r\n"+
		"cluster_slots_fail:0\r\ncluster_known_nodes:1\r\ncluster_size:1\r\ncluster_current_epoch:1\r\ncluster_my_epoch:1\r\n", clusterSlots))
}

func (b *commandBatch) handleRole() {
	b.writeArrayHeader(3)
	b.writeBulksAndInts("master", 0)
	b.writeArrayHeader(0)
}

func clusterSlot(key []byte) int {
	if _, tag, ok := bytes.Cut(key, []byte("{")); ok {
		if tag, _, ok = bytes.Cut(tag, []byte("}")); ok && len(tag) > 0 {
			key = tag
		}
	}
	var crc uint16
	for _, c := range key {
		crc ^= uint16(c) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % clusterSlots
}
