package hub

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// TestHubStateSaved checks that counters and last values move to another hub in order of use, within its limits.
func TestHubStateSaved(t *testing.T) {
	old := &Hub{Limits: Limits{LastValues: 3, MaxName: 10}}
	for i, name := range []string{"a", "b", "c", "d", "b"} {
		if _, err := old.Publish(name, fmt.Appendf(nil, "%s%d", name, i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"", "much too long"} {
		if _, err := old.Publish(name, nil); err == nil {
			t.Errorf("%q is a name", name)
		}
	}
	var written bytes.Buffer
	if err := (redisOrHTTPHandler{hub: old}).SaveState(&written); err != nil {
		t.Fatal(err)
	}
	want := old.Stats()
	if want.Refused.Names != 2 || want.LastValues != 3 || want.Evicted != 1 {
		t.Fatalf("before: %+v", want)
	}
	next := &Hub{Limits: old.Limits}
	if err := (redisOrHTTPHandler{hub: next}).RestoreState(bytes.NewReader(written.Bytes())); err != nil {
		t.Fatal(err)
	}
	if got := next.Stats(); got != want {
		t.Errorf("restored: %+v, want %+v", got, want)
	}
	var order []string
	for _, v := range next.lastValues.listLeastRecentlyUsedFirst() {
		order = append(order, string(v.message))
	}
	if got := fmt.Sprint(order); got != "[c2 d3 b4]" {
		t.Errorf("last values are %s", got)
	}
	for limit, kept := range map[int]int64{0: 0, 1: 1} {
		smaller := &Hub{Limits: Limits{LastValues: limit}}
		if err := (redisOrHTTPHandler{hub: smaller}).RestoreState(bytes.NewReader(written.Bytes())); err != nil || smaller.Stats().LastValues != kept {
			t.Errorf("of %d values: %v, %+v", limit, err, smaller.Stats())
		}
	}
	between := 0 // two values, or before the first
	for n := range written.Len() {
		if (redisOrHTTPHandler{hub: &Hub{Limits: old.Limits}}).RestoreState(bytes.NewReader(written.Bytes()[:n])) == nil {
			between++
		}
	}
	if between != 3 {
		t.Errorf("%d parts of a state are taken for a whole one; want those that end before a value, 3", between)
	}
	if err := (redisOrHTTPHandler{hub: next}).RestoreState(bytes.NewReader([]byte{99})); err == nil {
		t.Error("another version is taken")
	}
}

// TestSaveStateWaits checks that SaveState waits for started deliveries.
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
		if err := <-saved; err != nil {
			t.Error(err)
		}
	})
}

func TestSendToGroupKinds(t *testing.T) {
	h := new(Hub)
	for _, k := range []Kind{Topic, Pattern, Sharded, kindCount} {
		(redisOrHTTPHandler{hub: h}).SendToGroup(tcp.Broadcast{Kind: uint32(k), Group: "a"})
	}
	if n := h.Stats().Published; n != 2 {
		t.Errorf("%d are published, want 2", n)
	}
}
