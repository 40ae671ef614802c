package tcp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// fakeConn is a connection without a socket, driven by the test.
type fakeConn struct {
	*engine.Conn
	host *engine.Runtime
	why  error
	done bool
}

func newFakeConn(t testing.TB, h Handler, limits Limits) *fakeConn {
	t.Helper()
	limits, err := limits.withDefaults()
	requireNoError(t, err)
	w := &fakeConn{Conn: new(engine.Conn)}
	w.host = &engine.Runtime{
		Admission: engine.NewAdmission(&engine.Config{}),
		Config:    engine.Config{Handler: handlerAdapter{closeWatcher{h, w}}, Limits: limits.toEngine(), Log: slog.New(slog.DiscardHandler)},
		Buffers:   new(engine.FreeList), Counters: new(engine.Counters),
		Now: func() time.Duration { return 0 },
	}
	w.Bind(w.host, 0, 0)
	w.OnOpen(netip.MustParseAddrPort("127.0.0.1:1"), false)
	w.runUntilWait()
	return w
}

// closeWatcher records the close reason.
type closeWatcher struct {
	Handler
	w *fakeConn
}

func (h closeWatcher) Closed(c *Conn, why error) {
	h.w.why, h.w.done = why, true
	h.Handler.Closed(c, why)
}

func (w *fakeConn) runUntilWait() {
	for !w.done {
		switch w.AdvanceToNextAction() {
		case engine.Send:
			w.OnSent(len(w.Output()))
		case engine.FeedHandler:
			w.MakeDeferredHandlerCalls()
		case engine.ShutWrite:
			w.MarkWriteShutAndStartLinger()
		case engine.Close:
			w.OnClosed()
		case engine.Wait:
			return
		}
	}
}

// feedInput passes data in pieces of the given sizes, repeatedly, followed by the end of the input.
func (w *fakeConn) feedInput(data []byte, sizes ...int) {
	for i := 0; len(data) > 0 && !w.done && w.WantsInput(); i++ {
		n := min(max(sizes[i%len(sizes)], 1), len(data))
		w.OnRead(slices.Clone(data[:n]))
		w.runUntilWait()
		data = data[n:]
	}
	w.OnEOF()
	w.runUntilWait()
}

func newMessageCollector(into *[]string) MessageFunc {
	return func(_ *Conn, msg []byte) { *into = append(*into, string(msg)) }
}

// scanTokens returns the tokens that bufio.Scanner finds.
func scanTokens(data []byte, split bufio.SplitFunc) (tokens []string) {
	s := bufio.NewScanner(bytes.NewReader(data))
	s.Split(split)
	for s.Scan() {
		tokens = append(tokens, s.Text())
	}
	return tokens
}

// hideIncompleteError adapts a split function of this package to bufio.Scanner: it requests more
// input without a size.
func hideIncompleteError(split bufio.SplitFunc) bufio.SplitFunc {
	return func(data []byte, atEOF bool) (int, []byte, error) {
		advance, token, err := split(data, atEOF)
		if _, ok := err.(incompleteError); ok {
			err = nil
		}
		return advance, token, err
	}
}

func FuzzSplit(f *testing.F) {
	f.Add([]byte("one\ntwo\r\n\nthree"), uint8(3))
	f.Add([]byte("\r\n\r\r\n"), uint8(1))
	f.Add([]byte("\x00\x03abc\x00\x00\x00\x05he"), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		if len(data) > 1<<12 {
			return
		}
		prefixed := LengthPrefixed(2, binary.BigEndian)
		for _, c := range []struct {
			name  string
			split bufio.SplitFunc
			make  func(MessageHandler) Handler
		}{
			{"Lines", bufio.ScanLines, Lines},
			{"ScanLines", bufio.ScanLines, func(h MessageHandler) Handler { return Split(bufio.ScanLines, h) }},
			{"ScanWords", bufio.ScanWords, func(h MessageHandler) Handler { return Split(bufio.ScanWords, h) }},
			{"LengthPrefixed", hideIncompleteError(prefixed), func(h MessageHandler) Handler { return Split(prefixed, h) }},
		} {
			var got []string
			newFakeConn(t, c.make(newMessageCollector(&got)), Limits{MaxMessage: 1 << 17}).feedInput(data, int(size), 1, 7)
			if want := scanTokens(data, c.split); !slices.Equal(got, want) {
				t.Errorf("%s of %q in pieces of %d: got %q, bufio.Scanner has %q", c.name, data, size, got, want)
			}
		}
	})
}

func TestMaxMessage(t *testing.T) {
	prefixed := LengthPrefixed(1, binary.BigEndian)
	for _, c := range []struct {
		name   string
		h      func(MessageHandler) Handler
		in     string
		tokens int
		why    error
	}{
		{"a line of just the limit", Lines, "1234567\n", 1, io.EOF},
		{"a line beyond it", Lines, "ok\n12345678\nnever\n", 1, ErrMessageTooLong},
		{"no end in sight", Lines, "ok\n12345678", 1, ErrMessageTooLong},
		{"a token beyond it", func(h MessageHandler) Handler { return Split(bufio.ScanLines, h) }, "ok\n12345678\n", 1, ErrMessageTooLong},
		{"a length beyond it", func(h MessageHandler) Handler { return Split(prefixed, h) }, "\x02ok\x0812345678", 1, ErrMessageTooLong},
	} {
		for _, piece := range []int{1, 3, 1000} {
			var got []string
			w := newFakeConn(t, c.h(newMessageCollector(&got)), Limits{MaxMessage: 8})
			w.feedInput([]byte(c.in), piece)
			if len(got) != c.tokens || !errors.Is(w.why, c.why) {
				t.Errorf("%s, in pieces of %d: %d messages, closed with %v; want %d and %v", c.name, piece, len(got), w.why, c.tokens, c.why)
			}
		}
	}
}

// A length above the limit closes the connection at once and is logged, for example when a client
// speaks another protocol.
func TestAbsurdLength(t *testing.T) {
	for _, test := range []struct {
		name      string
		split     bufio.SplitFunc
		in        string
		announced string // "" if it is not above the limit
	}{
		{"HTTP", LengthPrefixed(4, binary.BigEndian), "GET / HTTP/1.1\r\n\r\n", "1195725860"},
		{"just within", LengthPrefixed(2, binary.BigEndian), "\x03\xe6" + strings.Repeat("a", 998), ""},
		{"just beyond", LengthPrefixed(2, binary.BigEndian), "\x03\xe7", "1001"},
		{"beyond all numbers", LengthPrefixed(8, binary.LittleEndian), "\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615"},
	} {
		var log logRecorder
		var got []string
		w := newFakeConn(t, Split(test.split, newMessageCollector(&got)), Limits{MaxMessage: 1000})
		w.host.Log = log.newLogger()
		w.feedInput([]byte(test.in), 500)
		if test.announced == "" {
			if len(got) != 1 || w.why != io.EOF {
				t.Errorf("%s: %d messages, closed with %v; want 1 and EOF", test.name, len(got), w.why)
			}
			continue
		}
		if len(got) > 0 || w.why != ErrMessageTooLong {
			t.Errorf("%s: %d messages, closed with %v, want ErrMessageTooLong", test.name, len(got), w.why)
		}
		log.waitForLine(t, "limit=Limits.MaxMessage", "value=1000", "seen="+test.announced, "peer=127.0.0.1:1")
	}
}

func TestSplitRules(t *testing.T) {
	token := []byte("x")
	for _, c := range []struct {
		name  string
		split bufio.SplitFunc
		want  int
		why   error
	}{
		{"negative advance", func([]byte, bool) (int, []byte, error) { return -1, nil, nil }, 0, bufio.ErrNegativeAdvance},
		{"advance too far", func(d []byte, _ bool) (int, []byte, error) { return len(d) + 1, nil, nil }, 0, bufio.ErrAdvanceTooFar},
		{"no progress", func([]byte, bool) (int, []byte, error) { return 0, token, nil }, maxEmptyTokens + 1, io.ErrNoProgress},
		{"its own error", func([]byte, bool) (int, []byte, error) { return 0, nil, io.ErrShortBuffer }, 0, io.ErrShortBuffer},
		{"final token", func([]byte, bool) (int, []byte, error) { return 1, token, bufio.ErrFinalToken }, 1, nil},
		{"final, no token", func([]byte, bool) (int, []byte, error) { return 1, nil, bufio.ErrFinalToken }, 0, nil},
		{"peer ends within a message", LengthPrefixed(4, binary.LittleEndian), 0, io.ErrUnexpectedEOF},
	} {
		var got []string
		w := newFakeConn(t, Split(c.split, newMessageCollector(&got)), Limits{})
		w.feedInput([]byte("abc"), 3)
		if len(got) != c.want || w.why != c.why {
			t.Errorf("%s: %d messages, closed with %v; want %d and %v", c.name, len(got), w.why, c.want, c.why)
		}
	}
}

func TestLengthPrefixedPanics(t *testing.T) {
	for size, order := range map[int]binary.ByteOrder{3: binary.BigEndian, 4: nil} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.Contains(text, "expected") {
					t.Errorf("LengthPrefixed(%d, %v) gives %q; want a panic that names what is possible", size, order, text)
				}
			}()
			LengthPrefixed(size, order)
		}()
	}
}
