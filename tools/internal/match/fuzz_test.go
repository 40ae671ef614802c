package match

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"testing"
)

// FuzzText compares with counting in the whole.
func FuzzText(f *testing.F) {
	f.Add([]byte("\r\n"), []byte("one\r\ntwo\r\r\nthree\r"))
	f.Add([]byte("aab"), []byte("aaabaabaaab"))
	f.Add([]byte("a"), []byte("aaa"))
	f.Add([]byte("abcabd"), []byte("abcabcabdabcab"))
	f.Fuzz(func(t *testing.T, text, in []byte) {
		if len(text) < 1 || len(text) > MaxText || len(in) > 1000 {
			return
		}
		for _, rule := range []string{"delimiter:", "marker:"} {
			r := mustParse(t, rule+escape(text))
			if s := checkPieces(t, r, in); s.answers != bytes.Count(in, text) || s.want != "" {
				t.Fatalf("%v: %q gives %s; expected %d answers", r, in, s.result(), bytes.Count(in, text))
			}
		}
	})
}

// FuzzLength reads what follows a length by itself, in numbers that can't
// overflow, and from the whole.
func FuzzLength(f *testing.F) {
	f.Add("length:1", []byte("\x00\x01a\x02ab\x03ab"))
	f.Add("length:4be+8", []byte("\x00\x00\x00\x01123456789\x00\x00\x00\x00"))
	f.Add("length:8le-8@2", []byte("ab\x09\x00\x00\x00\x00\x00\x00\x00acc\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add("bytes:3", []byte("abcdefgh"))
	f.Fuzz(func(t *testing.T, spec string, in []byte) {
		r, err := Parse(spec)
		if err != nil || r.kind != length && r.kind != size || len(in) > 1000 {
			return
		}
		s := checkPieces(t, r, in)
		if r.kind == size {
			if s.answers != len(in)/int(r.size) || s.want != "" {
				t.Fatalf("%v: %d bytes give %s", r, len(in), s.result())
			}
			return
		}
		ends, wrong := lengths(r.number, in)
		if s.answers != len(ends) || wrong != (s.want != "") {
			t.Fatalf("%v: %q gives %s; expected answers ending at %v, wrong %v", r, in, s.result(), ends, wrong)
		}
		for i, end := range ends {
			if s.ends[i] != end {
				t.Fatalf("%v: %q gives answers ending at %v; expected %v", r, in, s.ends, ends)
			}
		}
	})
}

// lengths is where answers end, and whether an error comes behind them.
func lengths(n number, in []byte) (ends []int, wrong bool) {
	for at := 0; at+n.at+n.bytes <= len(in); {
		digits := bytes.Clone(in[at+n.at : at+n.at+n.bytes])
		v := float64(n.offset)
		for i, d := range digits {
			place := len(digits) - 1 - i
			if n.little {
				place = i
			}
			v += float64(d) * float64(uint64(1)<<(8*place))
		}
		if v < 0 || v > MaxAnswer {
			return ends, true
		}
		if at += n.at + n.bytes + int(v); at > len(in) {
			return ends, false
		}
		ends = append(ends, at)
	}
	return ends, false
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
		checkPieces(t, mustParse(t, "http"), in)
		checkNetHTTP(t, in)
	})
}

// answer is one that a stream has.
type answer struct {
	status, end int
	last        bool
}

// checkNetHTTP compares with what net/http reads from in. The answers that both
// find must be the same; the one that finds fewer must have met an error.
func checkNetHTTP(t testing.TB, in []byte) {
	t.Helper()
	ours, wrong := ourAnswers(t, in)
	theirs, err := theirAnswers(in)
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

func ourAnswers(t testing.TB, in []byte) (all []answer, wrong string) {
	s := &stream{rule: mustParse(t, "http")}
	for i := range in {
		s.feed(t, in[i:i+1])
		if s.answers > len(all) {
			all = append(all, answer{s.statuses[len(all)], s.used, s.state.Last()})
		}
	}
	if s.want == "" && s.rule.End(&s.state, func(status int) { s.statuses = append(s.statuses, status) }) == 1 {
		all = append(all, answer{s.statuses[len(all)], s.used, s.state.Last()})
	}
	return all, s.want
}

func theirAnswers(in []byte) (all []answer, err error) {
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
