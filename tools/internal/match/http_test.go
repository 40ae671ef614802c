package match

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

const (
	plain   = "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\nDate: today\r\n\r\nhello"
	chunked = "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n5;name=\"v\"\r\nhello\r\n1A \r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nSum: 1\r\n\r\n"
)

// responses are streams that net/http accepts, too.
var responses = []struct {
	in       string
	statuses []int
	last     bool
	end      int // answers that the end of the connection completes
}{
	{"", nil, false, 0},
	{plain, []int{200}, false, 0},
	{plain + chunked + plain, []int{200, 404, 200}, false, 0},
	{strings.ReplaceAll(plain, "\r\n", "\n"), []int{200}, false, 0},
	{"HTTP/1.1 200\r\ncontent-LENGTH:0\r\n\r\n" + plain, []int{200, 200}, false, 0},
	{"HTTP/1.1 503 \r\nContent-Length: \t 2 \t\r\nContent-Length: 02\r\n\r\nab", []int{503}, false, 0},
	// without a body
	{"HTTP/1.1 204 No Content\r\n\r\n" + plain, []int{204, 200}, false, 0},
	{"HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n" + plain, []int{304, 200}, false, 0},
	{"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + plain, []int{101, 200}, false, 0},
	// interim
	{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nContent-Length: 3\r\nConnection: close\r\n\r\n" + plain, []int{200}, false, 0},
	{"HTTP/1.1 100 Continue\r\n\r\n", nil, false, 0},
	// chunks go before a length
	{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: CHUNKED\r\n\r\n1\r\na\r\n00\r\n\r\n" + plain, []int{200, 200}, false, 0},
	{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", []int{200}, false, 0},
	// the last answer
	{"HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", []int{500}, true, 0},
	{"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", []int{200}, true, 0},
	{"HTTP/1.1 200 OK\r\nConnection: closed, keep-alive\r\nContent-Length: 0\r\n\r\n", []int{200}, false, 0},
	{"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", []int{200}, true, 0},
	{"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nx" + plain, []int{200, 200}, false, 0},
	{"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", []int{200}, true, 0},
	{"HTTP/1.0 204 OK\r\n\r\n", []int{204}, true, 0},
	// the longest bodies
	{"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n", nil, false, 0},
	{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000\r\n", nil, false, 0},
	// a body that ends with the connection
	{plain + "HTTP/1.1 200 OK\r\nContent-Type: text\r\n\r\n", []int{200}, false, 1},
	{"HTTP/1.1 402 OK\r\n\r\n" + plain, nil, false, 1},
	{"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", nil, false, 1},
}

func TestResponses(t *testing.T) {
	r := mustParse(t, "http")
	for _, test := range responses {
		s := checkSplitIndependence(t, r, []byte(test.in))
		if s.want != "" || !slices.Equal(s.statuses, test.statuses) || s.state.ServerCloses() != test.last || len(s.rest) != 0 || s.answers != len(s.statuses) {
			t.Errorf("%q gives %s; expected statuses %v, last %v", test.in, s.formatResult(), test.statuses, test.last)
		}
		if n := r.EndStream(&s.state, func(int) {}); n != test.end || n > 0 && !s.state.ServerCloses() {
			t.Errorf("%q: the end completes %d answers, last %v; expected %d", test.in, n, s.state.ServerCloses(), test.end)
		}
		if n := r.EndStream(&s.state, nil); n != 0 {
			t.Errorf("%q: the second end completes %d answers", test.in, n)
		}
		compareWithNetHTTP(t, []byte(test.in)) // also the status of a body that ends with the connection
	}
}

func TestResponseErrors(t *testing.T) {
	head := "HTTP/1.1 200 OK\r\n"
	pieces := head + "Transfer-Encoding: chunked\r\n\r\n"
	r := mustParse(t, "http")
	for _, test := range []struct{ good, bad, want string }{
		{"", "x", wantResponse},
		{"", "http/1.1 200 OK\r\n", wantResponse},
		{"", "HTTP/1.2 200 OK\r\n", wantResponse},
		{"", "HTTP/1.1 20 OK\r\n", wantResponse},
		{"", "HTTP/1.1 099 OK\r\n", wantResponse},
		{"", "HTTP/1.1\n", wantResponse},
		{"", "\r\n", wantResponse},
		{plain, "\r\n" + plain, wantResponse},
		{"HTTP/1.1 204 No\r\n\r\n", "body", wantResponse},
		{head, "no colon\r\n", wantHeader},
		{head, "Name : x\r\n", wantHeader},
		{head + "Name: x\r\n", " more: of it\r\n", wantHeader},
		{head, "Content-Length: \r\n", wantBody},
		{head, "Content-Length: 1, 1\r\n", wantBody},
		{head, "Content-Length: 1099511627777\r\n", wantBody},
		{head, "Content-Length: 18446744073709551616\r\n", wantBody},
		{head + "Content-Length: 1\r\n", "Content-Length: 2\r\n", wantBody},
		{head, "Transfer-Encoding: gzip, chunked\r\n", wantEncoding},
		{head + "Transfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\n", wantEncoding},
		{pieces, "g\r\n", wantChunk},
		{pieces, ";1\r\n", wantChunk},
		{pieces, "10000000001\r\n", wantChunk},
		{pieces, "10000000000000001\r\n", wantChunk},
		{pieces + "1\r\na", "b", wantChunkEnd},
		{pieces + "0\r\n", "x\r\n", wantHeader},
		{"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", plain, wantNothing},
		{"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", "\r\n", wantNothing},
	} {
		s := checkSplitIndependence(t, r, []byte(test.good+test.bad+plain))
		if s.want != test.want || s.used != len(test.good) {
			t.Errorf("%q and then %q gives %s; expected the error %q at byte %d", test.good, test.bad, s.formatResult(), test.want, len(test.good))
		}
	}
}

func TestErrorText(t *testing.T) {
	_, _, err := mustParse(t, "http").ConsumeInput(new(StreamState), []byte("SSH-2.0-OpenSSH_9.9p1 and a long text\r\n"), nil)
	const want = `match: got "SSH-2.0-OpenSSH_9.9p1 and a long"; expected an HTTP/1.1 or HTTP/1.0 response`
	if err == nil || err.Error() != want {
		t.Errorf("error %v; expected %s", err, want)
	}
	for text, n := range map[string]int64{wantBody: maxBody, wantChunk: maxBody, wantHead: maxHead, wantChunkLine: maxChunkLine, wantLength: MaxAnswer} {
		if !strings.Contains(text, fmt.Sprint(n)) {
			t.Errorf("%q does not name the bound, %d", text, n)
		}
	}
}

// padText inserts as many x before end as make the text n bytes long.
func padText(text, end string, n int) string {
	return text + repeatX(n-len(text)-len(end)) + end
}

func TestHTTPBounds(t *testing.T) {
	r := mustParse(t, "http")
	pieces := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	interim := "HTTP/1.1 100 Continue\r\n\r\n"
	many := strings.Repeat(interim, maxHead/len(interim))
	final := "HTTP/1.1 204 No\r\n\r\n"
	for _, test := range []struct {
		name string
		make func(more int) string
		want string
	}{
		{"head", func(more int) string { return padText("HTTP/1.1 204 No\r\nX: ", "\r\n\r\n", maxHead+more) }, wantHead},
		{"status line", func(more int) string { return padText("HTTP/1.1 204 ", "\r\n\r\n", maxHead+more) }, wantHead},
		{"trailer", func(more int) string { return pieces + "0\r\n" + padText("X: ", "\r\n\r\n", maxHead+more) }, wantHead},
		{"interim", func(more int) string {
			first := padText("HTTP/1.1 100 ", "\r\n\r\n", maxHead-len(many)-len(final)+len(interim)+more)
			return first + strings.Repeat(interim, maxHead/len(interim)-1) + final
		}, wantHead},
		{"chunk line", func(more int) string { return pieces + padText("1;", "\r\n", maxChunkLine+more) + "a\r\n0\r\n\r\n" }, wantChunkLine},
	} {
		if s := feedInPieces(t, r, []byte(test.make(0))); s.want != "" || s.answers != 1 {
			t.Errorf("the longest %s gives %d answers, error %q; expected an answer", test.name, s.answers, s.want)
		}
		for name, cut := range map[string]int{"in one piece": 0, "in two": 1} {
			in := []byte(test.make(1))
			if s := feedInPieces(t, r, in, len(in)*cut/2); s.want != test.want || s.answers != 0 {
				t.Errorf("a %s that is a byte too long, %s, gives %d answers, error %q; expected %q", test.name, name, s.answers, s.want, test.want)
			}
		}
		// All but the last line's end: it must not be waited for.
		if s := feedInPieces(t, r, []byte(strings.TrimSuffix(test.make(maxHead), "\r\n"))); s.want != test.want {
			t.Errorf("a %s without an end gives the error %q; expected %q", test.name, s.want, test.want)
		}
	}
}

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
