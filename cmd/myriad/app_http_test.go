package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestParseRequest(t *testing.T) {
	const get, host = "GET / HTTP/1.1\r\n", "Host: a\r\n"
	// fits is a head of exactly maxHead bytes.
	fits := get + host + "A: "
	fits += strings.Repeat("x", maxHead-len(fits)-len("\r\n\r\n")) + "\r\n\r\n"
	for _, c := range []struct {
		in   string
		want verdict
	}{
		{"", incomplete},
		{"\r\n\r", incomplete},
		{get + host + "\r", incomplete},
		{get + host + "\r\n", served},
		{"\r\n\r\n" + get + host + "\r\n", served},
		{"GET http://a/ HTTP/1.1\r\n" + host + "Connection: Keep-Alive\r\n\r\n", served},
		{get + host + "Content-Length: 0\r\n\r\n", served},
		{get + host + "Connection: upgrade , Close\r\n\r\n", servedLast},
		{"GET / HTTP/1.0\r\n\r\n", servedLast},
		{"GET / HTTP/1.0\r\nConnection: KEEP-ALIVE\r\n\r\n", servedKept},
		{"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc", badMethod},
		{"HEAD / HTTP/1.1\r\n" + host + "\r\n", badMethod},
		{"GET / HTTP/2.0\r\n" + host + "\r\n", versionNotServed},
		{get + host + "Content-Length: 1\r\n\r\nx", badRequest},
		{get + host + "Transfer-Encoding: chunked\r\n\r\n", badRequest},
		{get + "\r\n", badRequest},
		{get + host + host + "\r\n", badRequest},
		{"GET / HTTP/1.1\nHost: a\n\n", badRequest},
		{"GET / HTTP/11\r\n\r\n", badRequest},
		{fits, served},
		{fits[:len(fits)-1], incomplete},
		{strings.Replace(fits, "A: ", "A: x", 1), headTooLarge},
	} {
		h := &httpHello{}
		for range 2 { // the second time the head is known
			n, v := h.parse([]byte(c.in))
			if v != c.want {
				t.Errorf("%.80q: verdict %d, want %d", c.in, v, c.want)
			}
			if v != incomplete && !v.closes() && n != len(c.in) {
				t.Errorf("%.80q: %d bytes used, want %d", c.in, n, len(c.in))
			}
		}
	}
}

// verdictsOf feeds pieces as a connection would, and lists the verdicts.
func verdictsOf(pieces ...[]byte) (all []verdict) {
	h := &httpHello{}
	var kept []byte
	for _, p := range pieces {
		kept = append(kept, p...)
		for len(kept) > 0 {
			n, v := h.parse(kept)
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

// FuzzParseRequest serves the same requests however the bytes are cut.
func FuzzParseRequest(f *testing.F) {
	one := "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	f.Add([]byte(one+one+"\r\n"+one), []byte{3, 40})
	f.Add([]byte("GET /x HTTP/1.0\r\nConnection: keep-alive\r\nA:b\r\n\r\nPOST / HTTP/1.1\r\n\r\n"), []byte{1, 1, 1, 1})
	f.Add([]byte(one+strings.Repeat("x", maxHead)), []byte{90, 200, 17})
	f.Add([]byte("GET / HTTP/1.0\nn:alive\r\nA:b\n\n\r\n\r\n"), []byte{1, 1, 1, 27})
	f.Fuzz(func(t *testing.T, in, cuts []byte) {
		var pieces [][]byte
		rest := in
		for _, n := range cuts {
			n := min(int(n), len(rest))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		served := func(all []verdict) []verdict {
			return slices.DeleteFunc(all, func(v verdict) bool { return v >= badRequest })
		}
		whole, cut := served(verdictsOf(bytes.Clone(in))), served(verdictsOf(append(pieces, rest)...))
		if !slices.Equal(whole, cut) {
			t.Errorf("%q: verdicts %v as a whole, %v cut at %v", in, whole, cut, cuts)
		}
	})
}
