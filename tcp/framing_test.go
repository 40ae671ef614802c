package tcp_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

type framing func(tcp.MessageHandler) tcp.Handler

func splitBy(split bufio.SplitFunc) framing {
	return func(h tcp.MessageHandler) tcp.Handler { return tcp.Split(split, h) }
}

type received struct {
	messages []string
	why      error // the close reason
	log      string
}

// receiveInPieces has a server receive data in pieces of the given sizes, repeatedly, followed by the end of the input.
func receiveInPieces(t *testing.T, frame framing, maxMessage int, data []byte, sizes ...int) (r received) {
	t.Helper()
	var log bytes.Buffer
	s := tcptest.NewServer(t, &tcp.Server{
		Limits: tcp.Limits{MaxMessage: maxMessage}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Handler: frame(tcp.MessageFunc(func(_ *tcp.Conn, msg []byte) { r.messages = append(r.messages, string(msg)) })),
	})
	p := s.Dial()
	for i := 0; len(data) > 0; i++ {
		n := min(max(sizes[i%len(sizes)], 1), len(data))
		p.Write(data[:n]) // fails when the server has closed
		data = data[n:]
	}
	p.CloseWrite()
	r.why, _ = p.Closed()
	r.log = log.String()
	return r
}

// scanTokens returns the tokens that bufio.Scanner finds. Errors by which split requests more input are ignored.
func scanTokens(data []byte, split bufio.SplitFunc) (tokens []string) {
	s := bufio.NewScanner(bytes.NewReader(data))
	s.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		advance, token, _ := split(data, atEOF)
		return advance, token, nil
	})
	for s.Scan() {
		tokens = append(tokens, s.Text())
	}
	return tokens
}

func FuzzSplit(f *testing.F) {
	f.Add([]byte("one\ntwo\r\n\nthree"), uint8(3))
	f.Add([]byte("\r\n\r\r\n"), uint8(1))
	f.Add([]byte("\x00\x03abc\x00\x00\x00\x05he"), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		if len(data) > 1<<12 {
			return
		}
		prefixed := tcp.LengthPrefixed(2, binary.BigEndian)
		for name, c := range map[string]struct {
			split bufio.SplitFunc
			frame framing
		}{
			"Lines":          {bufio.ScanLines, tcp.Lines},
			"ScanLines":      {bufio.ScanLines, splitBy(bufio.ScanLines)},
			"ScanWords":      {bufio.ScanWords, splitBy(bufio.ScanWords)},
			"LengthPrefixed": {prefixed, splitBy(prefixed)},
		} {
			got := receiveInPieces(t, c.frame, 1<<17, data, int(size), 1, 7).messages
			if want := scanTokens(data, c.split); !slices.Equal(got, want) {
				t.Errorf("%s of %q in pieces of %d: got %q, bufio.Scanner has %q", name, data, size, got, want)
			}
		}
	})
}

// A message above the limit closes the connection at once, for example when a client speaks another protocol, and is
// logged with its announced length. Errors of a split function are close reasons.
func TestSplitRules(t *testing.T) {
	token, big, little := []byte("x"), binary.BigEndian, binary.LittleEndian
	returns := func(advance int, token []byte, err error) framing {
		return splitBy(func([]byte, bool) (int, []byte, error) { return advance, token, err })
	}
	for _, c := range []struct {
		name     string
		frame    framing
		in       string
		messages int
		why      error
		seen     string // in the log
	}{
		{"a line of just the limit", tcp.Lines, "1234567\n", 1, io.EOF, ""},
		{"a line beyond it", tcp.Lines, "ok\n12345678\nnever\n", 1, tcp.ErrMessageTooLong, ""},
		{"no end in sight", tcp.Lines, "ok\n12345678", 1, tcp.ErrMessageTooLong, ""},
		{"a token beyond it", splitBy(bufio.ScanLines), "ok\n12345678\n", 1, tcp.ErrMessageTooLong, ""},
		{"a length within it", splitBy(tcp.LengthPrefixed(2, big)), "\x00\x06abcdef", 1, io.EOF, ""},
		{"a length beyond it", splitBy(tcp.LengthPrefixed(1, big)), "\x02ok\x08", 1, tcp.ErrMessageTooLong, "9"},
		{"HTTP", splitBy(tcp.LengthPrefixed(4, big)), "GET /", 0, tcp.ErrMessageTooLong, "1195725860"},
		{"beyond all numbers", splitBy(tcp.LengthPrefixed(8, little)), strings.Repeat("\xff", 8), 0, tcp.ErrMessageTooLong,
			"18446744073709551615"},
		{"the end within a message", splitBy(tcp.LengthPrefixed(4, little)), "abc", 0, io.ErrUnexpectedEOF, ""},
		{"negative advance", returns(-1, nil, nil), "abc", 0, bufio.ErrNegativeAdvance, ""},
		{"advance too far", returns(1000, nil, nil), "abc", 0, bufio.ErrAdvanceTooFar, ""},
		{"no progress", returns(0, token, nil), "abc", 101, io.ErrNoProgress, ""},
		{"its own error", returns(0, nil, io.ErrShortBuffer), "abc", 0, io.ErrShortBuffer, ""},
		{"final token", returns(1, token, bufio.ErrFinalToken), "abc", 1, nil, ""},
		{"final, no token", returns(1, nil, bufio.ErrFinalToken), "abc", 0, nil, ""},
	} {
		for _, piece := range []int{1, 3, 1000} {
			got := receiveInPieces(t, c.frame, 8, []byte(c.in), piece)
			if len(got.messages) != c.messages || !errors.Is(got.why, c.why) {
				t.Errorf("%s, in pieces of %d: %d messages, closed with %v; want %d and %v",
					c.name, piece, len(got.messages), got.why, c.messages, c.why)
			}
			for _, word := range []string{"limit=Limits.MaxMessage", "value=8", "seen=" + c.seen + " "} {
				if c.seen != "" && !strings.Contains(got.log, word) {
					t.Errorf("%s, in pieces of %d: the log has no %q:\n%s", c.name, piece, word, got.log)
				}
			}
		}
	}
}

func TestLengthPrefixedPanics(t *testing.T) {
	for size, order := range map[int]binary.ByteOrder{3: binary.BigEndian, 4: nil} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.Contains(text, "expected") {
					t.Errorf("LengthPrefixed(%d, %v): panic %q; want what is possible", size, order, text)
				}
			}()
			tcp.LengthPrefixed(size, order)
		}()
	}
}
