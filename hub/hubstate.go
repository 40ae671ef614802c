package hub

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"time"

	"github.com/myriad-go/myriad/internal/saved"
	"github.com/myriad-go/myriad/tcp"
)

// During an upgrade, the hub's counters and last values move to the new process. The server delivers published messages
// in both processes (see publishAuthorized). In a cluster, each process delivers the messages of other nodes, except
// while subscribers move. A broadcast of resumeClusterKind ends that pause.

// Starting implements tcp.StartHandler.
func (h redisOrHTTPHandler) Starting(s *tcp.Server) { h.hub.server.CompareAndSwap(nil, s) }

// SendToGroup implements tcp.BroadcastHandler.
func (h redisOrHTTPHandler) SendToGroup(b tcp.Broadcast) (receivers int) {
	switch k := Kind(b.Kind); k {
	case Topic, Sharded:
		h.hub.countPublished(1)
		return h.hub.deliverLocally(k, b.Group, b.Message, "")
	case resumeClusterKind:
		if m, ok := h.hub.Cluster.(ClusterMigrator); ok {
			m.Resume()
		}
	}
	return 0
}

// resumeClusterKind marks a broadcast that resumes the cluster. The server queues this broadcast behind earlier ones.
const resumeClusterKind = Kind(kindCount)

// queueClusterResumeBehindBroadcasts resumes the cluster after all broadcasts that the server has already queued.
func (h *Hub) queueClusterResumeBehindBroadcasts(cluster ClusterMigrator) {
	if s := h.server.Load(); s == nil {
		cluster.Resume()
	} else if _, err := s.Broadcast(tcp.Broadcast{Kind: uint32(resumeClusterKind)}); err != nil {
		cluster.Resume()
	}
}

// hubStateVersion is the version of the format written by SaveState. A state consists of the counters as JSON, the
// cluster's state, and the last values (name and message), least recently used first. Each part is preceded by its
// length.
const hubStateVersion = 2

type savedCounters struct {
	Published, Delivered, Dropped, Evicted int64
	Lost, LostBytes, DeliveredBytes        int64
	Refused                                Refused
}

// SaveState implements tcp.StateMigrator.
func (h redisOrHTTPHandler) SaveState(w io.Writer) error {
	for h.hub.published.Load() != h.hub.publishesStarted.Load() { // in this order: publishesStarted may run ahead
		time.Sleep(50 * time.Microsecond)
	}
	var cluster []byte
	if m, ok := h.hub.Cluster.(ClusterMigrator); ok {
		cluster = m.Pause()
		h.hub.queueClusterResumeBehindBroadcasts(m)
	}
	s := h.hub.Stats()
	p, err := json.Marshal(savedCounters{s.Published, s.Delivered, s.Dropped, s.Evicted, s.Lost, s.LostBytes, h.hub.deliveredBytes.Load(), s.Refused})
	if err != nil {
		return err
	}
	if _, err = w.Write(saved.AppendString(saved.AppendString([]byte{hubStateVersion}, p), cluster)); err != nil {
		return err
	}
	for _, v := range h.hub.lastValues.listLeastRecentlyUsedFirst() {
		if _, err = w.Write(saved.AppendString(saved.AppendString(nil, v.name), v.message)); err != nil {
			return err
		}
	}
	return nil
}

// RestoreState implements tcp.StateMigrator.
func (h redisOrHTTPHandler) RestoreState(r io.Reader) error {
	in := bufio.NewReader(r)
	version, err := in.ReadByte()
	if err != nil || version != hubStateVersion {
		return errBadState
	}
	p, err := readLengthPrefixed(in)
	if err != nil {
		return errBadState
	}
	var s savedCounters
	if err := json.Unmarshal(p, &s); err != nil {
		return err
	}
	h.hub.addSavedCounters(s)
	cluster, err := readLengthPrefixed(in)
	if err != nil {
		return errBadState
	}
	if m, ok := h.hub.Cluster.(ClusterMigrator); ok {
		h.hub.queueClusterResumeBehindBroadcasts(m)
		if err := m.Restore(cluster); err != nil {
			return err
		}
	}
	for {
		name, err := readLengthPrefixed(in)
		if err == io.EOF {
			return nil
		}
		message, e := readLengthPrefixed(in)
		if err != nil || e != nil {
			return errBadState
		}
		if h.hub.Limits.LastValues > 0 {
			h.hub.lastValues.storeNewestAndEvict(string(name), message, h.hub.Limits)
		}
	}
}

func (h *Hub) addSavedCounters(s savedCounters) {
	h.countPublished(s.Published)
	h.delivered.Add(s.Delivered)
	h.dropped.Add(s.Dropped)
	h.lost.Add(s.Lost)
	h.lostBytes.Add(s.LostBytes)
	h.deliveredBytes.Add(s.DeliveredBytes)
	counted := make(map[*int64]bool)
	for i := range refusalCauses {
		if n := refusalCauses[i].of(&s.Refused); !counted[n] { // several causes share a counter
			counted[n] = true
			h.refused[i].Add(*n)
		}
	}
	h.lastValues.mu.Lock()
	defer h.lastValues.mu.Unlock()
	h.lastValues.evicted += s.Evicted
}

// readLengthPrefixed reads a length and then that number of bytes. If the input is empty, it returns io.EOF.
func readLengthPrefixed(in *bufio.Reader) ([]byte, error) {
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if _, err = io.CopyN(&b, in, int64(n&(1<<62-1))); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return b.Bytes(), nil
}

func (l *lastValueCache) listLeastRecentlyUsedFirst() (values []lastValue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for v := l.oldest; v != nil; v = v.newer {
		values = append(values, lastValue{name: v.name, message: v.message})
	}
	return values
}
