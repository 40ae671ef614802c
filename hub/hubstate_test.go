package hub

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// TestHubStateSaved checks that counters and last values move to another hub in order of use, within its limits.
func TestHubStateSaved(t *testing.T) {
	old := &Hub{Limits: Limits{LastValues: 3, MaxName: 10}}
	for i, name := range []string{"a", "b", "c", "d", "b"} {
		old.publishAll(t, name, fmt.Sprint(name, i))
	}
	if _, err := old.Publish("much too long", nil); err == nil {
		t.Error("a name is not too long")
	}
	var written bytes.Buffer
	testkit.RequireNoError(t, (redisOrHTTPHandler{hub: old}).SaveState(&written))
	restore := func(l Limits, state []byte) (*Hub, error) {
		h := &Hub{Limits: l}
		return h, redisOrHTTPHandler{hub: h}.RestoreState(bytes.NewReader(state))
	}
	next, err := restore(old.Limits, written.Bytes())
	if got, want := next.Stats(), old.Stats(); err != nil || got != want || want.Refused.Names != 1 || want.LastValues != 3 || want.Evicted != 1 {
		t.Errorf("restored: %+v, %v, want %+v", got, err, want)
	}
	var order []string
	for _, v := range next.lastValues.listLeastRecentlyUsedFirst() {
		order = append(order, string(v.message))
	}
	testkit.WantEqual(t, fmt.Sprint(order), "[c2 d3 b4]", "last values")
	for limit, kept := range map[int]int64{0: 0, 1: 1} {
		if smaller, err := restore(Limits{LastValues: limit}, written.Bytes()); err != nil || smaller.Stats().LastValues != kept {
			t.Errorf("of %d values: %v, %+v", limit, err, smaller.Stats())
		}
	}
	between := 0 // two values, or before the first
	for n := range written.Len() {
		if _, err := restore(old.Limits, written.Bytes()[:n]); err == nil {
			between++
		}
	}
	testkit.WantEqual(t, between, 3, "parts of a state that are taken for a whole one: those that end before a value")
	if _, err := restore(old.Limits, []byte{99}); err == nil {
		t.Error("another version is taken")
	}
}

// TestKeptMessagesSaved checks that kept messages move to another hub, up to its limits and those of a state, with the
// stream's numbers and what is known of dropped messages.
func TestKeptMessagesSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newHub := func(r *Replay) *Hub {
			r.Topics = []string{"*"}
			return &Hub{Replay: r, Limits: Limits{LastValues: 1}}
		}
		old := newHub(&Replay{MaxMessagesPerTopic: 2})
		old.publishAll(t, "quiet", "1")
		time.Sleep(time.Minute)
		old.publishAll(t, "busy", "2", "3", "4", "5")
		var written, part bytes.Buffer
		testkit.RequireNoError(t, (redisOrHTTPHandler{hub: old}).SaveState(&written))
		testkit.RequireNoError(t, old.Replay.saveKeptMessages(&part, 2*(5+keptMessageOverhead)))
		restore := func(h *Hub, state []byte) error {
			return (redisOrHTTPHandler{hub: h}).RestoreState(bytes.NewReader(state))
		}
		expect := func(h *Hub, err error, want string) {
			t.Helper()
			r, have := h.Replay, ""
			for _, m := range r.messagesAndDropMarksAfterLocked(0) {
				if m.topic != nil {
					have += string(m.data)
				}
			}
			have += fmt.Sprintf(", missing %d of quiet and %d of busy", r.newestDroppedSeqLocked("quiet"), r.newestDroppedSeqLocked("busy"))
			if err != nil || have != want || r.newestPos != old.Replay.newestPos || !r.ready {
				t.Errorf("%s, up to %v, %v; expected %s", have, r.newestPos, err, want)
			}
		}
		next := newHub(&Replay{})
		expect(next, restore(next, written.Bytes()), "145, missing 0 of quiet and 3 of busy")
		if n := next.Replay.newestDroppedSeqOfPatternsLocked([]topicPattern{{glob: compileGlob("b*")}}, 2); n != 3 || next.Stats().LastValues != 1 {
			t.Errorf("a pattern misses messages up to %d; expected 3: %+v", n, next.Stats())
		}
		next.publishAll(t, "busy", "6")
		at, _ := next.Replay.At()
		testkit.WantEqual(t, at.Seq, 6, "number of the next message")
		next = newHub(&Replay{MaxMessagesPerTopic: 1, MaxAge: time.Second})
		expect(next, restore(next, written.Bytes()), "5, missing 1 of quiet and 4 of busy")
		next = newHub(&Replay{})
		expect(next, next.Replay.restoreKeptMessages(bufio.NewReader(&part)), "45, missing 1 of quiet and 3 of busy")
		testkit.ExpectNoError(t, restore(&Hub{Limits: old.Limits}, written.Bytes())) // a hub that keeps nothing
		for n := 1; n < written.Len(); n++ {
			next = newHub(&Replay{})
			if err := restore(next, written.Bytes()[:n]); next.Replay.ready == (next.Replay.newestPos.Epoch == "") || err != nil && next.Replay.live > 0 && next.Replay.live < 3 {
				t.Errorf("a state of %d of %d bytes: %v, %+v", n, written.Len(), err, next.Stats().Replay)
			}
		}
		written.Reset()
		if err := (redisOrHTTPHandler{hub: newHub(&Replay{})}).SaveState(&written); err != nil || restore(next, written.Bytes()) != nil {
			t.Error("a hub that has not begun:", err)
		}
	})
}

func TestSaveStateWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(Hub)
		h.publishesStarted.Add(1)
		saved := make(chan error, 1)
		go func() { saved <- (redisOrHTTPHandler{hub: h}).SaveState(io.Discard) }()
		time.Sleep(time.Minute)
		select {
		case err := <-saved:
			t.Fatalf("saved while a message is delivered: %v", err)
		default:
		}
		h.published.Add(1)
		testkit.ExpectNoError(t, <-saved)
	})
}

func TestSendToGroupKinds(t *testing.T) {
	h := new(Hub)
	for _, k := range []Kind{Topic, Pattern, Sharded, kindCount} {
		(redisOrHTTPHandler{hub: h}).SendToGroup(tcp.Broadcast{Kind: uint32(k), Group: "a"})
	}
	testkit.WantEqual(t, h.Stats().Published, 2, "published messages")
}
