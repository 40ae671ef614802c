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

// This file keeps a hub the same in two processes while one takes the other's place. The server delivers
// what is published in both: see fanOut. Counters and last values go along. In a cluster each process
// delivers what comes from the other nodes, except while subscribers move: resumeKind ends that pause.

// Starting implements tcp.StartHandler.
func (h handler) Starting(s *tcp.Server) { h.hub.server.CompareAndSwap(nil, s) }

// SendToGroup implements tcp.BroadcastHandler.
func (h handler) SendToGroup(b tcp.Broadcast) (receivers int) {
	switch k := Kind(b.Kind); k {
	case Topic, Sharded:
		h.hub.countPublished(1)
		return h.hub.deliver(k, b.Group, b.Message, "")
	case resumeKind:
		if m, ok := h.hub.Cluster.(ClusterMigrator); ok {
			m.Resume()
		}
	}
	return 0
}

// resumeKind is of a broadcast that ends a pause of the cluster, and is held as long as the others.
const resumeKind = Kind(kinds)

// resumeBehind ends the pause when what is held now is delivered.
func (h *Hub) resumeBehind(m ClusterMigrator) {
	if s := h.server.Load(); s == nil {
		m.Resume()
	} else if _, err := s.Broadcast(tcp.Broadcast{Kind: uint32(resumeKind)}); err != nil {
		m.Resume()
	}
}

// savedVersion is of what SaveState writes: counters, as JSON, and what the cluster has to say, each behind its
// length, and then for each topic whose last message is kept, those not used for longest first, both behind
// their lengths.
const savedVersion = 2

// savedCounters are those of Stats that go on.
type savedCounters struct {
	Published, Delivered, Dropped, Evicted int64
	Lost, LostBytes, DeliveredBytes        int64
	Refused                                Refused
}

// SaveState implements tcp.StateMigrator.
func (h handler) SaveState(w io.Writer) error {
	for h.hub.published.Load() != h.hub.begun.Load() { // in this order: only begun may run ahead
		time.Sleep(50 * time.Microsecond)
	}
	var cluster []byte
	if m, ok := h.hub.Cluster.(ClusterMigrator); ok {
		cluster = m.Pause()
		h.hub.resumeBehind(m)
	}
	s := h.hub.Stats()
	p, err := json.Marshal(savedCounters{s.Published, s.Delivered, s.Dropped, s.Evicted, s.Lost, s.LostBytes, h.hub.deliveredBytes.Load(), s.Refused})
	if err != nil {
		return err
	}
	if _, err = w.Write(saved.AppendString(saved.AppendString([]byte{savedVersion}, p), cluster)); err != nil {
		return err
	}
	for _, v := range h.hub.last.all() {
		if _, err = w.Write(saved.AppendString(saved.AppendString(nil, v.name), v.message)); err != nil {
			return err
		}
	}
	return nil
}

// RestoreState implements tcp.StateMigrator.
func (h handler) RestoreState(r io.Reader) error {
	in := bufio.NewReader(r)
	version, err := in.ReadByte()
	if err != nil || version != savedVersion {
		return errState
	}
	p, err := readSaved(in)
	if err != nil {
		return errState
	}
	var s savedCounters
	if err := json.Unmarshal(p, &s); err != nil {
		return err
	}
	h.hub.goOn(s)
	cluster, err := readSaved(in)
	if err != nil {
		return errState
	}
	if m, ok := h.hub.Cluster.(ClusterMigrator); ok {
		h.hub.resumeBehind(m)
		if err := m.Restore(cluster); err != nil {
			return err
		}
	}
	for {
		name, err := readSaved(in)
		if err == io.EOF {
			return nil
		}
		message, e := readSaved(in)
		if err != nil || e != nil {
			return errState
		}
		if h.hub.Limits.LastValues > 0 {
			h.hub.last.keep(string(name), message, h.hub.Limits)
		}
	}
}

// goOn has the counters begin with those of another process.
func (h *Hub) goOn(s savedCounters) {
	h.countPublished(s.Published)
	h.delivered.Add(s.Delivered)
	h.dropped.Add(s.Dropped)
	h.lost.Add(s.Lost)
	h.lostBytes.Add(s.LostBytes)
	h.deliveredBytes.Add(s.DeliveredBytes)
	told := make(map[*int64]bool)
	for i := range causes {
		if n := causes[i].of(&s.Refused); !told[n] { // some causes are counted together
			told[n] = true
			h.refused[i].Add(*n)
		}
	}
	h.last.mu.Lock()
	defer h.last.mu.Unlock()
	h.last.evicted += s.Evicted
}

// readSaved reads bytes behind their length; io.EOF is before them.
func readSaved(in *bufio.Reader) ([]byte, error) {
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

// all is every value, those that were not used for longest first.
func (l *lastValues) all() (all []lastValue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for v := l.oldest; v != nil; v = v.newer {
		all = append(all, lastValue{name: v.name, message: v.message})
	}
	return all
}
