package load

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

func newExampleResult() *Result {
	return &Result{
		Target: "127.0.0.1:9000", Model: "epoll", CPUs: 1,
		Connections: 1000, Connected: 998, ConnectTime: 499 * time.Millisecond,
		ConnectErrors: map[string]int64{"connection refused": 2},
		Mode:          "closed loop", Pipeline: 1, MessageSize: 64, Window: 10 * time.Second,
		Counts:    Counts{Sent: 1_234_567, Answered: 1_234_560, BytesSent: 79_012_288, BytesReceived: 79_011_840},
		Latency:   Latency{Count: 1_234_560, Min: 21_345, Mean: 8_081_234, P50: 8_000_000, P90: 9_000_000, P99: 12_345_678, P999: 20_000_000, Max: 31_415_926},
		Generator: Usage{Process: sample.Process{User: 3 * time.Second, System: 6600 * time.Millisecond}},
		Lost:      map[string]int64{"closed by the server": 1, "connection reset by peer": 2},
	}
}

func TestWriteText(t *testing.T) {
	var b strings.Builder
	testkit.RequireNoError(t, newExampleResult().WriteText(&b))
	want := `target       127.0.0.1:9000
connected    998 of 1,000 in 499ms, 2,000/s
failed       2 × connection refused
load         closed loop, 1 in flight a connection
messages     64 bytes
sent         1,234,567, 79,012,288 bytes
answered     1,234,560, 79,011,840 bytes
rate         123,456/s over 10s, 63.21 Mbps in, 63.21 out
latency      since sending: messages that a stalled server delayed count only from then
             mean 8.08ms, min 21.3µs, max 31.4ms
             50% 8ms, 90% 9ms, 99% 12.3ms, 99.9% 20ms
longest gap  31.4ms of a connection from a message to its answer, 99% of them at most 12.3ms
in flight    998 of 998 (rate × mean latency)
generator    epoll, user 3s, system 6.6s, 96% of 1 CPU
lost         2 × connection reset by peer, 1 × closed by the server
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestErr(t *testing.T) {
	for want, r := range map[string]Result{
		"":                             {Connected: 1, ConnectErrors: map[string]int64{"timed out": 1}},
		"no connection to a:1":         {Target: "a:1"},
		"a:1 succeeded: 3 × timed out": {Target: "a:1", ConnectErrors: map[string]int64{"timed out": 3}},
		"lost: 1 × timed out":          {Connected: 1, Lost: map[string]int64{"timed out": 1}},
		"without an answer: 1":         {Connected: 1, Unanswered: 1},
		"wrong answers on 1 of ":       {Connected: 1, Mismatched: 1, FirstMismatch: &Mismatch{}, Unanswered: 1},
	} {
		if err := r.Err(); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestCause(t *testing.T) {
	refused := &net.OpError{Op: "dial", Addr: &net.TCPAddr{Port: 1}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, test := range []struct {
		err  error
		want string
	}{
		{refused, syscall.ECONNREFUSED.Error()},
		{syscall.ECONNREFUSED, syscall.ECONNREFUSED.Error()},
		{fmt.Errorf("x: %w", io.EOF), "closed by the server"},
		{&net.OpError{Op: "dial", Addr: &net.TCPAddr{Port: 1}, Err: errors.New("odd")}, "odd"},
		{os.ErrDeadlineExceeded, "timed out"},
		{errors.New("other"), "other"},
		{nil, "closed"},
	} {
		if got := describeCause(test.err); got != test.want {
			t.Errorf("%v: got %q, want %q", test.err, got, test.want)
		}
	}
}

// TestResultTags checks the tags of results: mergeFieldsByTag knows each way to merge, each counter
// merges, and each index of counts has a counter.
func TestResultTags(t *testing.T) {
	named := map[string]bool{}
	for _, c := range Counters {
		named[c.Name] = true
	}
	for name := range counterIndexes {
		if !named[name] {
			t.Errorf("no counter %q", name)
		}
	}
	for _, v := range []any{Event{}, Plan{}, Snapshot{}, Interval{}, Result{}, Counts{}, Bytes{}, Verification{}, Broadcast{}, PubSub{}, Usage{}, sample.Process{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			how, merges := f.Tag.Lookup("merge")
			_, setting := f.Tag.Lookup("flag")
			if _, help := f.Tag.Lookup("help"); help && !setting && !merges {
				t.Errorf("%T.%s has a help text and does not merge", v, f.Name)
			}
			if merges && !slices.Contains([]string{"sum", "gauge", "shared", "min", "max", "first", "last", "append"}, how) {
				t.Errorf("%T.%s merges by %q", v, f.Name, how)
			}
		}
	}
}
