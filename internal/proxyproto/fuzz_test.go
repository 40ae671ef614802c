package proxyproto

import (
	"bytes"
	"strings"
	"testing"
)

// second is a header that follows another one.
var second = string(appendHeader(nil, six, 2))

// checkParsePrefixes checks properties that hold for any bytes: a result for the beginning of b does not
// depend on what follows, and b is not called incomplete if it cannot be completed.
func checkParsePrefixes(t *testing.T, b []byte) {
	t.Helper()
	whole, size, err := Parse(b)
	if size < 0 || size > len(b) || size > MaxSize || err != nil && size != 0 {
		t.Fatalf("%q gives %d bytes of %d, %v", b, size, len(b), err)
	}
	if size == 0 && err == nil && len(b) >= MaxSize {
		t.Fatalf("%d bytes are not enough", len(b))
	}
	wrong := false
	for i := range len(b) + 1 {
		// bytes beyond the slice's length must not matter
		room := append(bytes.Clone(b[:i]), strings.Repeat("1\r\n\x00", 8)...)
		h, n, e := Parse(room[:i:i])
		if h2, n2, e2 := Parse(room[:i]); h2 != h || n2 != n || (e2 == nil) != (e == nil) {
			t.Fatalf("%q gives %+v, %d, %v, and with other memory behind it %+v, %d, %v", b[:i], h, n, e, h2, n2, e2)
		}
		switch {
		case wrong && e == nil:
			t.Fatalf("%q is an error but for its last byte, and with it gives %+v, %d", b[:i], h, n)
		case size > 0 && i < size && (n != 0 || e != nil || h != Header{}):
			t.Fatalf("%q is the beginning of a good header and gives %+v, %d, %v", b[:i], h, n, e)
		case size > 0 && i >= size && (n != size || e != nil || h != whole):
			t.Fatalf("%q gives %+v, %d, %v; and its first %d bytes %+v, %d", b[:i], h, n, e, size, whole, size)
		}
		wrong = e != nil
	}
	if size == 0 && err == nil {
		return
	}
	for _, more := range []string{"\x00", "\r\n", "GET / HTTP/1.1\r\n\r\n", second} {
		h, n, e := Parse(append(bytes.Clone(b), more...))
		if h != whole || n != size || (e == nil) != (err == nil) {
			t.Fatalf("%q gives %+v, %d, %v; and with %q behind it %+v, %d, %v", b, whole, size, err, more, h, n, e)
		}
	}
}

// checkRoundTrip compares a valid header with appendHeader.
func checkRoundTrip(t *testing.T, b []byte, h Header) {
	t.Helper()
	if addresses := h.Source.IsValid() && h.Destination.IsValid(); addresses == (h.Local || h.Unix) || h.Local && h.Unix {
		t.Fatalf("%q gives %+v", b, h)
	}
	for version := 1; version <= 2; version++ {
		want := h
		if version == 1 && h.Unix {
			want = local
		}
		b := appendHeader(nil, h, version)
		if again, n, err := Parse(b); again != want || n != len(b) || err != nil {
			t.Fatalf("%+v in version %d is %q, which gives %+v, %d, %v", h, version, b, again, n, err)
		}
	}
}

// FuzzParse has valid headers of both versions as seeds in testdata, and these.
func FuzzParse(f *testing.F) {
	for _, c := range invalidHeaders {
		f.Add([]byte(c.in))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 400 { // checkParsePrefixes is quadratic
			b = b[:400]
		}
		checkParsePrefixes(t, b)
		if h, n, err := Parse(b); n > 0 && err == nil {
			checkRoundTrip(t, b[:n], h)
		}
	})
}
