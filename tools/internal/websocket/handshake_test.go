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

// proof is the accept value for the sample key in RFC 6455, 1.3.
const proof = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

const agreed = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + proof + "\r\n\r\n"

func replaceInResponse(old, new string) string {
	if !strings.Contains(agreed, old) {
		panic("the response has no " + old)
	}
	return strings.Replace(agreed, old, new, 1)
}

func TestResponse(t *testing.T) {
	long := "\r\nX: " + strings.Repeat("x", maxHead-len(agreed)-len("\r\nX: ")) + "\r\n\r\n"
	for name, in := range map[string]string{
		"plain":              agreed,
		"no reason":          replaceInResponse("101 Switching Protocols", "101"),
		"case":               replaceInResponse("Upgrade: websocket\r\nConnection: Upgrade", "UPGRADE:WebSocket\r\nconnection:upgrade"),
		"list":               replaceInResponse("Connection: Upgrade", "Connection: keep-alive ,\tUpgrade"),
		"bare newline":       replaceInResponse("\r\nUpgrade", "\nUpgrade"),
		"others":             replaceInResponse("\r\n\r\n", "\r\nServer: x\r\nX-Empty:\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Extensions: \r\n\r\n"),
		"space about values": replaceInResponse(proof, "\t "+proof+" "),
		"the longest":        replaceInResponse("\r\n\r\n", long),
	} {
		n, err := CheckHandshakeResponse([]byte(in), sample)
		if n != len(in) || err != nil {
			t.Errorf("%s: %d bytes of %d, error %v", name, n, len(in), err)
		}
		checkPrefixes(t, []byte(in))
	}
}

func TestBadResponse(t *testing.T) {
	for name, c := range map[string]struct{ in, err string }{
		"status":            {"HTTP/1.1 404 Not Found\r\n\r\n", `response is "HTTP/1.1 404 Not Found"; expected "HTTP/1.1 101`},
		"HTTP/1.0":          {replaceInResponse("1.1", "1.0"), `response is "HTTP/1.0 101`},
		"not HTTP":          {"220 mail", `response is "220 mail"`},
		"not HTTP, soon":    {"+", `response is "+"`},
		"a long status":     {"HTTP/1.1 200 " + strings.Repeat("x", 1000) + "\r\n\r\n", `xxx..."`},
		"no colon":          {replaceInResponse("Connection: ", "Connection "), "malformed"},
		"space in name":     {replaceInResponse("Connection: ", "Connection : "), `Connection is ""`},
		"no upgrade":        {replaceInResponse("Upgrade: websocket\r\n", ""), `Upgrade is ""; expected websocket`},
		"another upgrade":   {replaceInResponse("websocket", "h2c"), `Upgrade is "h2c"`},
		"connection closed": {replaceInResponse("Connection: Upgrade", "Connection: close, x-upgrade"), `Connection is "close, x-upgrade"; expected Upgrade`},
		"no proof":          {replaceInResponse("Accept: ", "Accepted: "), `Sec-Websocket-Accept is ""`},
		"wrong proof":       {replaceInResponse(proof, "S3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "expected " + proof},
		"two proofs":        {replaceInResponse(proof, proof+"\r\nSec-WebSocket-Accept: "+proof), "once"},
		"extension":         {replaceInResponse("\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"), "none was offered"},
		"too long": {replaceInResponse("\r\n\r\n", "\r\nX: "+strings.Repeat("x", maxHead-len(agreed)-len("\r\nX: ")+1)+"\r\n\r\n"),
			"header is longer than 16384 bytes"},
	} {
		n, err := CheckHandshakeResponse([]byte(c.in), sample)
		if n != 0 || err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %d, %v; expected an error with %q", name, n, err, c.err)
		}
		if len(c.in) < 4096 {
			checkPrefixes(t, []byte(c.in))
		}
	}
}

// checkPrefixes checks, for any bytes, that the verdict on a prefix does not depend on what follows.
func checkPrefixes(t *testing.T, in []byte) {
	t.Helper()
	n, err := CheckHandshakeResponse(in, sample)
	if n < 0 || n > min(len(in), maxHead) || n > 0 && err != nil {
		t.Fatalf("%q gives %d, %v", in, n, err)
	}
	if n == 0 && err == nil && len(in) >= maxHead {
		t.Fatalf("%d bytes are not enough", len(in))
	}
	wrong := false
	for i := range len(in) {
		if len(in) > 1024 && i%97 > 0 && i < len(in)-4 {
			continue
		}
		m, e := CheckHandshakeResponse(in[:i:i], sample)
		switch {
		case wrong && e == nil:
			t.Fatalf("%q is an error but for its last bytes, and gives %d", in[:i], m)
		case n > 0 && i < n && (m != 0 || e != nil):
			t.Fatalf("%q is the beginning of a good response and gives %d, %v", in[:i], m, e)
		case n > 0 && i >= n && m != n:
			t.Fatalf("%q gives %d, %v; and its first %d bytes %d", in[:i], m, e, n, n)
		}
		wrong = e != nil
	}
	if wrong && err == nil {
		t.Fatalf("%q is an error but for its last bytes, and gives %d", in, n)
	}
}

// FuzzResponse divides responses at any byte.
func FuzzResponse(f *testing.F) {
	f.Add([]byte(agreed + "\x81\x02hi"))
	f.Add([]byte(replaceInResponse("Connection: Upgrade", "Connection: a, Upgrade")))
	f.Add([]byte(replaceInResponse("\r\n\r\n", "\r\nX: y\r\n\r\n")))
	f.Add([]byte("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
	f.Add([]byte("SSH-2.0-x\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) { checkPrefixes(t, in) })
}
