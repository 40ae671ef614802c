package web

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// FuzzHead compares the parsing of heads with net/http's: a head accepted here must be accepted
// there with the same result.
func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"\r\nPOST /a%20b?c=d#e HTTP/1.0\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello",
		"PUT http://u@h:80/x HTTP/1.1\r\nHost: y\r\nTransfer-Encoding: chunked\r\nTrailer: A, B\r\nX:\r\n\r\n",
		"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
		"GET /a?b=c HTTP/1.1\r\nHost: x\r\nCookie: a=b\r\nX: y\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: x\r\nX: 1\r\nX: 2\r\nContent-Length: 5\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nPragma: no-cache\r\nExpect: 100-continue\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		n, err := completeHeadLength(in, 0, 4<<10)
		if err != nil || n == 0 {
			return
		}
		r := &http.Request{Header: make(http.Header)}
		var s headBuffer
		h, err := parseHead(in[:n], r, &s)
		if err != nil {
			return
		}
		theirs, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(bytes.TrimPrefix(in[:n], []byte("\r\n")))))
		if err != nil {
			t.Fatalf("net/http does not take %q: %v", in[:n], err)
		}
		if r.Method != theirs.Method || r.RequestURI != theirs.RequestURI || r.Host != theirs.Host || *r.URL != *theirs.URL && r.URL.String() != theirs.URL.String() ||
			r.ContentLength != theirs.ContentLength || h.length != theirs.ContentLength || r.Close != theirs.Close || len(r.Header) != len(theirs.Header) {
			t.Errorf("%q is\n%+v\nfor us, and\n%+v\nfor net/http", in[:n], r, theirs)
		}
		for key, values := range theirs.Header {
			if strings.Join(values, "\n") != strings.Join(r.Header[key], "\n") {
				t.Errorf("%s is %q for us, and %q for net/http", key, r.Header[key], values)
			}
		}
		describe := func(r *http.Request) string {
			return fmt.Sprintf("%s %s %#v %s %d %v %q %d %q %v %v", r.Method, r.RequestURI, *r.URL, r.Proto, r.ProtoMinor, r.Close, r.Host, r.ContentLength, r.TransferEncoding, r.Header, r.Trailer)
		}
		want := describe(r)
		for range 3 { // a head may equal the last one, whatever its handler has changed
			s.recycle()
			r = &http.Request{Header: make(http.Header)}
			if again, err := parseHead(in[:n], r, &s); err != nil || again != h || describe(r) != want {
				t.Fatalf("%q again is %s, want %s", in[:n], describe(r), want)
			}
			r.URL.Path, r.Host = "changed", "changed"
			for _, values := range r.Header {
				values[0] = "changed"
			}
			clear(r.Header)
		}
	})
}

func serveInPieces(t *testing.T, h tcp.Handler, in, cuts []byte) string {
	p := tcptest.NewServer(t, &tcp.Server{Handler: h, Limits: tcp.Limits{MaxMessage: 32 << 10}}).Dial()
	for i := 0; len(in) > 0; i++ {
		n := len(in)
		if len(cuts) > 0 {
			n = min(n, 1+int(cuts[i%len(cuts)]))
		}
		if _, err := p.Write(in[:n]); err != nil {
			break
		}
		in = in[n:]
	}
	p.CloseWrite()
	return p.Output()
}

// FuzzHTTP sends any input in pieces: the answers must be the same as to the whole.
func FuzzHTTP(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\nbad"), []byte{3, 7})
	f.Add([]byte("\r\nHEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.1\n\n"), []byte{1})
	f.Add([]byte("T / HTTP/\x99\nH\r\n\r\nd"), []byte{1})
	f.Add([]byte("GET / HTTP/2.0\r\nX: 1\nY: 2\r\n\r\n"), []byte{1})
	h := &HTTP{ErrorLog: log.New(io.Discard, "", 0), Handler: Quick(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Date"] = nil
		io.WriteString(w, r.RequestURI)
	}))}
	f.Fuzz(func(t *testing.T, in, cuts []byte) {
		if bytes.Contains(bytes.ToLower(in), []byte("content-length")) || bytes.Contains(bytes.ToLower(in), []byte("transfer-encoding")) {
			return // a body's request runs on the pool
		}
		whole, _, _ := strings.Cut(serveInPieces(t, h, in, nil), "400 Bad Request: ") // the reason found first may differ
		if pieces, _, _ := strings.Cut(serveInPieces(t, h, in, cuts), "400 Bad Request: "); whole != pieces {
			t.Errorf("%q is answered with\n%q, and in pieces with\n%q", in, whole, pieces)
		}
	})
}

// FuzzSocket sends any input to a WebSocket in pieces: the answers must be the same as to the
// whole.
func FuzzSocket(f *testing.F) {
	f.Add([]byte("\x81\x85\x00\x00\x00\x00hello\x89\x80\x00\x00\x00\x00"), []byte{1}, false)
	f.Add([]byte("\x01\x83\x01\x02\x03\x04abc\x89\x81\x00\x00\x00\x00x\x80\x82\x01\x01\x01\x01de\x88\x80\x00\x00\x00\x00"), []byte{2, 5}, true)
	f.Add([]byte("b\x7f\x82\x01\x01\x01\x01de\x00\xff"), []byte{2, 5}, true) // a reserved bit and a wrong length
	f.Add([]byte("\xc1\x87\x00\x00\x00\x00\xf2\x48\xcd\xc9\xc9\x07\x00"), []byte{4}, true)
	ws := &WebSocket{Compression: true, MaxMessage: 16 << 10, Handler: OnMessage(func(s Socket, kind Kind, m []byte) { _ = s.Write(kind, m) })}
	h := &HTTP{Handler: Quick(ws)}
	const upgrade = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	f.Fuzz(func(t *testing.T, frames, cuts []byte, deflate bool) {
		in := upgrade
		if deflate {
			in += "Sec-WebSocket-Extensions: permessage-deflate\r\n"
		}
		all := append([]byte(in+"\r\n"), frames...)
		if whole, pieces := serveInPieces(t, h, all, nil), serveInPieces(t, h, all, cuts); whole != pieces {
			t.Errorf("%q is answered with\n%q, and in pieces with\n%q", frames, whole, pieces)
		}
	})
}
