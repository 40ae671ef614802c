package websocket

import (
	"bufio"
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// sample is the key of the example in RFC 6455, 1.3.
var sample = HandshakeKey([]byte("the sample nonce"))

func TestRequest(t *testing.T) {
	header := http.Header{"X-Two": {"1", "2"}, "Origin": {"http://a.example"}}
	got := string(AppendRequest([]byte("before"), "a.example:81", "/chat?x=1", header, sample))
	want := "beforeGET /chat?x=1 HTTP/1.1\r\nHost: a.example:81\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n" +
		"Origin: http://a.example\r\nX-Two: 1\r\nX-Two: 2\r\n\r\n"
	if got != want {
		t.Errorf("the request is\n%q; expected\n%q", got, want)
	}
	if got := AppendRequest(nil, "a.example", "", nil, sample); !bytes.HasPrefix(got, []byte("GET / HTTP/1.1\r\n")) {
		t.Errorf("without a path the request is %q; expected one of /", got)
	}
}

func TestCheckHeader(t *testing.T) {
	const fixed = "/?" // and "X: " and "\r\n"
	room := maxHead - 1 - len(fixed) - len("X: \r\n")
	for _, good := range []struct {
		path   string
		header http.Header
	}{
		{"", nil},
		{"/a/b?c=d&e=%20", http.Header{"Sec-WebSocket-Protocol": {"mqtt"}, "Cookie": {"a=b; c=\td", ""}}},
		{fixed, http.Header{"X": {strings.Repeat("x", room)}}},
	} {
		if err := CheckPathAndHeader(good.path, good.header); err != nil {
			t.Errorf("path %.80q, header %.80q: %v", good.path, good.header, err)
		}
	}
	for _, bad := range []struct {
		path, name, value, err string
	}{
		{path: "a", err: `path is "a"`},
		{path: "/a b", err: "space"},
		{path: "/a\r\nX: y", err: `path is "/a\r\nX: y"`},
		{path: "/#a", err: `path is "/#a"`},
		{path: "/%zz", err: "percent-encoding"},
		{name: "", value: "x", err: `header name is ""`},
		{name: "a b", err: `header name is "a b"`},
		{name: "a\r\nb", err: `header name is "a\r\nb"`},
		{name: "X", value: "a\r\nb: c", err: "control characters"},
		{name: "X", value: "a\x00", err: "control characters"},
		{name: "X", value: "a\x7f", err: "control characters"},
		{name: "host", value: "a", err: "header host"},
		{name: "Upgrade", value: "h2c", err: "header Upgrade"},
		{name: "Connection", value: "close", err: "header Connection"},
		{name: "Sec-WebSocket-Key", value: "a", err: "header Sec-WebSocket-Key"},
		{name: "Sec-Websocket-Version", value: "13", err: "header Sec-Websocket-Version"},
		{name: "Sec-WebSocket-Extensions", value: "permessage-deflate", err: "header Sec-WebSocket-Extensions"},
		{name: "Sec-WebSocket-Accept", value: "a", err: "header Sec-WebSocket-Accept"},
		{name: "Content-Length", value: "1", err: "header Content-Length"},
		{name: "Transfer-Encoding", value: "chunked", err: "header Transfer-Encoding"},
		{path: fixed, name: "X", value: strings.Repeat("x", room+1), err: "16384 bytes; expected fewer than 16384"},
		{path: "/" + strings.Repeat("x", maxHead-1), err: "16384 bytes"},
	} {
		var header http.Header
		if bad.path == "" || bad.name != "" {
			header = http.Header{bad.name: {bad.value}}
		}
		err := CheckPathAndHeader(bad.path, header)
		if err == nil || !strings.Contains(err.Error(), bad.err) {
			t.Errorf("path %.80q, header %.80q: %v; expected an error with %q", bad.path, header, err, bad.err)
		}
	}
}

// FuzzRequest checks that Go's server parses a request that passes CheckPathAndHeader as intended, and nothing more.
func FuzzRequest(f *testing.F) {
	f.Add("/a?b=c", "X-Name", "value")
	f.Add("/", "Host", "b.example")
	f.Add("/a b", "X\r\nY", "a\r\n\r\nGET / HTTP/1.1")
	f.Add("//a", "cookie", "  a=b\t")
	f.Fuzz(func(t *testing.T, path, name, value string) {
		header := http.Header{name: {value}}
		if CheckPathAndHeader(path, header) != nil {
			return
		}
		raw := AppendRequest(nil, "a.example", path, header, sample)
		in := bufio.NewReaderSize(bytes.NewReader(raw), len(raw))
		r, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if path == "" {
			path = "/"
		}
		if r.RequestURI != path || r.Host != "a.example" || in.Buffered() > 0 {
			t.Fatalf("%q is read as path %q of host %q, with %d bytes behind it", raw, r.RequestURI, r.Host, in.Buffered())
		}
		if got := r.Header.Values(name); !slices.Equal(got, []string{strings.Trim(value, " \t")}) {
			t.Fatalf("%q is read with header %q", raw, got)
		}
	})
}
