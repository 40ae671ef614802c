package hub

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/saved"
	"github.com/myriad-go/myriad/tcp"
)

// During an upgrade, the hub's counters, last values and stored messages move to the new process. The server delivers
// published messages in both processes (see authorizeAndPublish). Only the new process numbers and stores messages that
// are published after SaveState (see keepIfSingleHubAndDeliver). In a cluster, each process delivers the messages of
// other nodes, but pauses while subscribers move. A broadcast of resumeClusterKind ends the pause.

// Starting implements tcp.StartHandler.
func (h redisOrHTTPHandler) Starting(s *tcp.Server) { h.hub.server.CompareAndSwap(nil, s) }

// SendToGroup implements tcp.BroadcastHandler.
func (h redisOrHTTPHandler) SendToGroup(b tcp.Broadcast) (receivers int) {
	switch k := Kind(b.Kind); k {
	case Topic, Sharded:
		h.hub.countPublished(1)
		return h.hub.keepIfSingleHubAndDeliver(k, b.Group, b.Message)
	case resumeClusterKind:
		if m, ok := h.hub.Cluster.(ClusterMigrator); ok {
			m.Resume()
		}
	}
	return 0
}

// resumeClusterKind is the kind of a broadcast that contains no message. The broadcast makes the cluster resume
// delivery after an upgrade.
const resumeClusterKind = Kind(kindCount)

func (h *Hub) queueClusterResumeBehindBroadcasts(cluster ClusterMigrator) {
	if s := h.server.Load(); s == nil {
		cluster.Resume()
	} else if _, err := s.Broadcast(tcp.Broadcast{Kind: uint32(resumeClusterKind)}); err != nil {
		cluster.Resume()
	}
}

const hubStateVersion = 3

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
		cluster = m.PauseDelivery()
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
	if err := h.hub.localReplayOrEmpty().saveKeptMessages(w, maxSavedKeptBytes); err != nil {
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
	if version, err := in.ReadByte(); err != nil || version != hubStateVersion {
		return errBadState
	}
	p, err := readUnboundedLengthPrefixed(in)
	if err != nil {
		return errBadState
	}
	var s savedCounters
	if err := json.Unmarshal(p, &s); err != nil {
		return err
	}
	h.hub.addSavedCounters(s)
	cluster, err := readUnboundedLengthPrefixed(in)
	if err != nil {
		return errBadState
	}
	if m, ok := h.hub.Cluster.(ClusterMigrator); ok {
		h.hub.queueClusterResumeBehindBroadcasts(m)
		if err := m.Restore(cluster); err != nil {
			return err
		}
	}
	if err := h.hub.localReplayOrEmpty().restoreKeptMessages(in); err != nil {
		return err
	}
	for {
		name, err := readUnboundedLengthPrefixed(in)
		if err == io.EOF {
			return nil
		}
		message, e := readUnboundedLengthPrefixed(in)
		if err != nil || e != nil {
			return errBadState
		}
		if h.hub.Limits.LastValues > 0 {
			h.hub.lastValues.storeNewestAndEvict(string(name), message, h.hub.Limits)
		}
	}
}

func (h *Hub) localReplayOrEmpty() *Replay {
	if h.keepsLocally() {
		return h.Replay
	}
	return new(Replay)
}

// maxSavedKeptBytes limits the size of the stored messages that an upgrade passes to the new process.
const maxSavedKeptBytes = 256 << 20

// saveKeptMessages writes the newest stored messages, with a total size of at most maxBytes. The output consists of
// parts, each preceded by its length. The first part describes the stream. Each further part contains one message. The
// last part is empty.
func (r *Replay) saveKeptMessages(w io.Writer, maxBytes int) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var part, out []byte
	if r.ready && !r.handedOver {
		first, floor := len(r.messages), r.droppedFloor
		for bytes := 0; first > r.head; first-- {
			if m := r.messages[first-1]; m.topic != nil {
				if bytes += m.memoryBytes(); bytes > maxBytes {
					floor = max(floor, m.seq)
					break
				}
			}
		}
		part = binary.AppendUvarint(binary.AppendUvarint(saved.AppendString(nil, r.newestPos.Epoch), floor), r.newestPos.Seq)
		for name, seq := range r.newestDropped {
			part = binary.AppendUvarint(saved.AppendString(part, name), seq)
		}
		for _, m := range r.messages[first:] {
			if m.topic == nil {
				continue
			}
			out = saved.AppendString(out[:0], part)
			if _, err := w.Write(out); err != nil {
				return err
			}
			part = saved.AppendString(saved.AppendString(part[:0], m.topic.name), m.data)
			part = binary.AppendUvarint(binary.AppendUvarint(part, m.seq), uint64(m.when))
		}
		out = saved.AppendString(out[:0], part)
	}
	_, err := w.Write(append(out, 0))
	return err
}

// restoreKeptMessages replaces the stored messages by the messages that saveKeptMessages has written. If
// saveKeptMessages had no stream to write, the stored messages remain.
func (r *Replay) restoreKeptMessages(in *bufio.Reader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	part, err := readUnboundedLengthPrefixed(in)
	if len(part) == 0 {
		return err
	}
	stream := saved.NewReader(part)
	epoch, floor, newest := stream.String(), stream.Uvarint(), stream.Uvarint()
	r.clearAndBeginStreamLocked(epoch, floor+1)
	for len(stream.Remaining()) > 0 {
		r.recordNewestDroppedLocked(stream.String(), stream.Uvarint())
	}
	for {
		if part, err = readUnboundedLengthPrefixed(in); err != nil {
			r.clearAndBeginStreamLocked("", 1)
			return errBadState
		}
		if len(part) == 0 {
			r.readyLocked(newest)
			return nil
		}
		m := saved.NewReader(part)
		topic, data, seq, when := m.String(), slices.Clone(m.Bytes()), m.Uvarint(), time.Unix(0, int64(m.Uvarint()))
		r.newestPos.Seq = seq
		r.addWithinTopicLimitsLocked(seq, when, topic, data)
		r.dropBeyondLimitsLocked(when, math.MaxInt)
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

// readUnboundedLengthPrefixed reads a length and the data of this length. At the end of the input, it returns io.EOF.
func readUnboundedLengthPrefixed(in *bufio.Reader) ([]byte, error) {
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, err
	}
	b := bytes.NewBuffer(make([]byte, 0, min(n, 64<<10)+bytes.MinRead)) // n may be wrong
	if _, err = io.CopyN(b, in, int64(n&(1<<62-1))); err != nil {
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
