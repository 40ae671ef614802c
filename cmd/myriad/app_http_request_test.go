package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestParseRequest(t *testing.T) {
	const host = "Host: a\r\n"
	long := strings.Repeat("x", maxHead)
	// fits is a head of exactly maxHead bytes.
	fits := "GET / HTTP/1.1\r\n" + host + "A: "
	fits += strings.Repeat("x", maxHead-len(fits)-len("\r\n\r\n")) + "\r\n\r\n"
	for _, c := range []struct {
		in   string
		want verdict
	}{
		{"", incomplete},
		{"\r", incomplete},
		{"\r\n\r", incomplete},
		{"\rX", badRequest},
		{"GET / HTTP/1.1\r\n" + host + "\r", incomplete},
		{"GET / HTTP/1.1\r\n" + host + "\r\n", served},
		{"\r\n\r\nGET / HTTP/1.1\r\n" + host + "\r\n", served},
		{"GET /a?b=c&d HTTP/1.1\r\nhOsT:a:80\t\r\nX: \xff\r\nY:\r\nContent-Length: 0 \r\n\r\n", served},
		{"GET http://a/ HTTP/1.1\r\n" + host + "Connection: Keep-Alive\r\n\r\n", served},
		{"GET / HTTP/1.1\r\n" + host + "Connection: upgrade , Close\r\n\r\n", servedLast},
		{"GET / HTTP/1.1\r\n" + host + "Connection: closed\r\n\r\n", served},
		{"GET / HTTP/1.0\r\n\r\n", servedLast},
		{"GET / HTTP/1.0\r\nConnection: KEEP-ALIVE\r\n\r\n", servedKept},
		{"GET / HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", servedLast},

		{"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc", badMethod},
		{"HEAD / HTTP/1.1\r\n", badMethod},
		{"get / HTTP/1.1\r\n", badMethod},
		{"GET / HTTP/2.0\r\n", versionNotServed},
		{"GET / HTTP/0.9\r\n", versionNotServed},

		{"GET / HTTP/1.1\r\n" + host + "Content-Length: 1\r\n\r\nx", badRequest},
		{"GET / HTTP/1.1\r\n" + host + "Content-Length: 0, 1\r\n", badRequest},
		{"GET / HTTP/1.1\r\n" + host + "Content-Length:\r\n", badRequest},
		{"GET / HTTP/1.1\r\n" + host + "transfer-encoding: chunked\r\n", badRequest},
		{"GET / HTTP/1.1\r\n\r\n", badRequest},
		{"GET / HTTP/1.1\r\n" + host + host + "\r\n", badRequest},
		{"GET / HTTP/1.1\r\n" + host + "X : a\r\n", badRequest},
		{"GET / HTTP/1.1\r\n" + host + " folded\r\n", badRequest},
		{"GET / HTTP/1.1\r\n" + host + ": a\r\n", badRequest},
		{"GET / HTTP/1.1\r\n" + host + "nothing\r\n", badRequest},
		{"GET / HTTP/1.1\r\n" + host + "X: a\rb\r\n", badRequest},
		{"GET / HTTP/1.1\r\n" + host + "X: \x00\r\n", badRequest},
		{"GET / HTTP/1.1\n", badRequest},
		{"\nGET / HTTP/1.1\r\n", badRequest},
		{"GET  / HTTP/1.1\r\n", badRequest},
		{"GET /  HTTP/1.1\r\n", badRequest},
		{"GET / HTTP/1.1 \r\n", badRequest},
		{"GET / HTTP/11\r\n", badRequest},
		{"GET / http/1.1\r\n", badRequest},
		{"GET /\x7f HTTP/1.1\r\n", badRequest},
		{"GET * HTTP/1.1\r\n", badRequest},
		{"GET /\r\n", badRequest},
		{"GET\r\n", badRequest},
		{" GET / HTTP/1.1\r\n", badRequest},
		{"G(T / HTTP/1.1\r\n", badRequest},

		{fits, served},
		{fits[:len(fits)-1], incomplete},
		{strings.Replace(fits, "A: ", "A: x", 1), headTooLarge},
		{"GET /" + long, headTooLarge},
		{"\r\n" + long, headTooLarge},
		{long[1:], incomplete},
		{"\r\n" + long[1:], incomplete},
	} {
		n, v := parseRequest([]byte(c.in))
		if v != c.want {
			t.Errorf("%.80q: verdict %d, want %d", c.in, v, c.want)
		}
		if v != incomplete && !v.closes() && n != len(c.in) {
			t.Errorf("%.80q: %d bytes used, want %d", c.in, n, len(c.in))
		}
	}
}

// verdictsOf feeds pieces as a connection would, and lists the verdicts.
func verdictsOf(pieces ...[]byte) (all []verdict) {
	var kept []byte
	for _, p := range pieces {
		kept = append(kept, p...)
		for len(kept) > 0 {
			n, v := parseRequest(kept)
			kept = kept[n:]
			if v == incomplete {
				break
			}
			if all = append(all, v); v.closes() {
				return all
			}
		}
	}
	return all
}

// FuzzParseRequest has the same verdicts however the bytes are cut, uses no more
// than there is, and serves no request that net/http refuses or understands in
// another way. The input has pad bytes more.
func FuzzParseRequest(f *testing.F) {
	one := "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	f.Add([]byte(one+one+"\r\n"+one), uint16(0), []byte{3, 40})
	f.Add([]byte("GET /x HTTP/1.0\r\nConnection: keep-alive\r\nA:b\r\n\r\nPOST / HTTP/1.1\r\n\r\n"), uint16(1), []byte{1, 1, 1, 1})
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), uint16(9), []byte{255})
	f.Add([]byte(one), uint16(maxHead), []byte{90, 200, 17})
	f.Fuzz(func(t *testing.T, in []byte, pad uint16, cuts []byte) {
		in = append(in[:len(in):len(in)], bytes.Repeat([]byte("x"), int(pad))...)
		n, v := parseRequest(in)
		if n < 0 || n > len(in) {
			t.Fatalf("%d bytes used of %d", n, len(in))
		}
		if v == served || v == servedKept || v == servedLast {
			againstNetHTTP(t, in[:n], v)
		}
		var pieces [][]byte
		rest := in
		for i := 0; len(rest) > 0; i++ {
			size := len(rest)
			if len(cuts) > 0 {
				size = min(size, 1+int(cuts[i%len(cuts)]))
			}
			pieces = append(pieces, rest[:size])
			rest = rest[size:]
		}
		if whole, cut := verdictsOf(in), verdictsOf(pieces...); !slices.Equal(whole, cut) {
			t.Fatalf("verdicts %v in one piece, %v in %d", whole, cut, len(pieces))
		}
	})
}

func againstNetHTTP(t *testing.T, in []byte, v verdict) {
	t.Helper()
	rest := bufio.NewReader(bytes.NewReader(bytes.TrimLeft(in, "\r\n")))
	r, err := http.ReadRequest(rest)
	if err != nil {
		// It looks into targets and hosts, which we don't use.
		for _, ours := range []string{"invalid URL", "parse \"", "malformed Host", "net/url", "invalid port"} {
			if strings.Contains(err.Error(), ours) {
				return
			}
		}
		t.Fatalf("served %q, which net/http refuses: %v", in, err)
	}
	if r.Method != "GET" || r.ContentLength != 0 || rest.Buffered() > 0 || r.Close != (v == servedLast) {
		t.Fatalf("served %q as %d; net/http has method %s, content of %d bytes, %d left over, close %v",
			in, v, r.Method, r.ContentLength, rest.Buffered(), r.Close)
	}
}

func BenchmarkParseRequest(b *testing.B) {
	for _, fields := range []int{1, 10} {
		in := []byte("GET / HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n" + strings.Repeat("Accept-Language: en\r\n", fields-1) + "\r\n")
		b.Run(fmt.Sprint(fields), func(b *testing.B) {
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				if _, v := parseRequest(in); v != served {
					b.Fatal(v)
				}
			}
		})
	}
}

// Looking at eight bytes together says the same as looking at each.
func TestPlainText(t *testing.T) {
	for at := range 8 {
		for c := range 256 {
			b := []byte("abcdefgh")
			b[at] = byte(c)
			got, want := plain(binary.LittleEndian.Uint64(b)), classes[c]&text != 0 && c != '\t'
			if got != want {
				t.Errorf("%q is plain: %v, want %v", b, got, want)
			}
		}
	}
}
