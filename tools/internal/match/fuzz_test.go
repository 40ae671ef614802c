package match

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"testing"
)

func FuzzHTTP(f *testing.F) {
	for _, r := range responses {
		f.Add([]byte(r.in))
	}
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 1000 {
			return
		}
		checkSplitIndependence(t, mustParse(t, "http"), in)
		compareWithNetHTTP(t, in)
	})
}

// answer is an answer in a stream.
type answer struct {
	status, end int
	last        bool
}

// compareWithNetHTTP compares with what net/http parses. The answers that both find must be equal;
// the one that finds fewer must have returned an error.
func compareWithNetHTTP(t testing.TB, in []byte) {
	t.Helper()
	ours, wrong := parseWithRule(t, in)
	theirs, err := parseWithNetHTTP(in)
	for i := range min(len(ours), len(theirs)) {
		if ours[i] != theirs[i] {
			t.Fatalf("%q: answer %d is %+v; net/http says %+v", in, i, ours[i], theirs[i])
		}
	}
	switch {
	case len(ours) < len(theirs) && wrong == "":
		t.Fatalf("%q: answers %+v; net/http says %+v", in, ours, theirs)
	case len(ours) > len(theirs) && (err == nil || errors.Is(err, io.ErrUnexpectedEOF)):
		t.Fatalf("%q: answers %+v; net/http says %+v, %v", in, ours, theirs, err)
	}
}

func parseWithRule(t testing.TB, in []byte) (all []answer, wrong string) {
	s := &stream{rule: mustParse(t, "http")}
	for i := range in {
		s.feedPiece(t, in[i:i+1])
		if s.answers > len(all) {
			all = append(all, answer{s.statuses[len(all)], s.used, s.state.ServerCloses()})
		}
	}
	if s.want == "" && s.rule.EndStream(&s.state, func(status int) { s.statuses = append(s.statuses, status) }) == 1 {
		all = append(all, answer{s.statuses[len(all)], s.used, s.state.ServerCloses()})
	}
	return all, s.want
}

func parseWithNetHTTP(in []byte) (all []answer, err error) {
	r := bytes.NewReader(in)
	b := bufio.NewReader(r)
	for {
		if _, err := b.Peek(1); err != nil {
			return all, nil
		}
		resp, err := http.ReadResponse(b, nil)
		if err != nil {
			return all, err
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return all, err
		}
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		all = append(all, answer{resp.StatusCode, len(in) - r.Len() - b.Buffered(), resp.Close})
		if resp.Close {
			return all, nil
		}
	}
}
