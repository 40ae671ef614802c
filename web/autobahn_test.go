package web_test

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

const fin = testkit.FIN

// fr returns a masked frame of a client.
var fr = testkit.MaskedFrame

// echoSocket echoes each message.
var echoSocket = web.OnMessage(func(s web.Socket, kind web.Kind, m []byte) { _ = s.Write(kind, m) })

func dialSocket(t testing.TB, addr, fields string) *testkit.Conn {
	t.Helper()
	c := testkit.Dial(t, addr)
	c.HandshakeWebSocket("/ws", fields)
	return c
}

// encodeFragments encodes a message as frames of the given size. first is the byte with the
// opcode.
func encodeFragments(first byte, m string, size int) string {
	var all strings.Builder
	for i := 0; i == 0 || i < len(m); i += size {
		op := byte(0)
		if i == 0 {
			op = first
		}
		if i+size >= len(m) {
			op |= fin
		}
		all.WriteString(fr(op, m[i:min(i+size, len(m))]))
	}
	return all.String()
}

// writePieces writes s in pieces of the given size, each in its own segment if possible. The
// server may close earlier.
func writePieces(w io.Writer, s string, size int) {
	for piece := range slices.Chunk([]byte(s), size) {
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

func closeFrame(code int, reason string) string {
	return string(binary.BigEndian.AppendUint16(nil, uint16(code))) + reason
}

func expectFrame(t testing.TB, c *testkit.Conn, first byte, payload string) {
	t.Helper()
	got, p, err := testkit.ReadFrame(c.R)
	if err != nil || got != first || p != payload {
		t.Fatalf("a frame %#x of %d bytes %.40q, %v; want %#x, %d bytes %.40q", got, len(p), p, err, first, len(payload), payload)
	}
}

func expectClose(t testing.TB, c *testkit.Conn, code int) {
	t.Helper()
	want := closeFrame(code, "")
	if code < 0 {
		want = ""
	}
	first, p, err := testkit.ReadFrame(c.R)
	if err != nil || first != fin|8 || !strings.HasPrefix(p, want) || code < 0 && p != "" {
		t.Fatalf("a frame %#x %.40q, %v; want a close with %d", first, p, err, code)
	}
	if rest := c.ExpectClosed(); rest != "" {
		t.Fatalf("%q behind the close", rest)
	}
	c.Close()
}

// TestAutobahn reproduces the cases of the Autobahn test suite by number, sections 1 to 7, 9 and 10.
// The server echoes messages.
func TestAutobahn(t *testing.T) {
	type expectedFrame struct {
		first   byte
		payload string
	}
	type row struct {
		number string
		send   string
		chop   int             // size of the pieces in which it is sent, in bytes
		want   []expectedFrame // then the connection stays open, or
		code   int             // a close with this code comes
	}
	var rows []row
	add := func(number, send string, chop, code int, want ...expectedFrame) {
		rows = append(rows, row{number, send, chop, want, code})
	}
	text := func(s string) expectedFrame { return expectedFrame{fin | 1, s} }
	pong := func(s string) expectedFrame { return expectedFrame{fin | 10, s} }
	for i, n := range []int{0, 125, 126, 127, 128, 65535, 65536, 65536} {
		chop := i / 7 * 997
		add(fmt.Sprintf("1.1.%d", i+1), fr(fin|1, strings.Repeat("*", n)), chop, 0, text(strings.Repeat("*", n)))
		add(fmt.Sprintf("1.2.%d", i+1), fr(fin|2, strings.Repeat("\xfe", n)), chop, 0, expectedFrame{fin | 2, strings.Repeat("\xfe", n)})
	}
	binaryPing := "\x00\xff\xfe\xfd\xfc\xfb\x00\xff"
	add("2.1", fr(fin|9, ""), 0, 0, pong(""))
	add("2.2", fr(fin|9, "Hello, world!"), 0, 0, pong("Hello, world!"))
	add("2.3", fr(fin|9, binaryPing), 0, 0, pong(binaryPing))
	add("2.4", fr(fin|9, strings.Repeat("\xfe", 125)), 0, 0, pong(strings.Repeat("\xfe", 125)))
	add("2.5", fr(fin|9, strings.Repeat("\xfe", 126)), 0, 1002)
	add("2.6", fr(fin|9, strings.Repeat("\xfe", 125)), 1, 0, pong(strings.Repeat("\xfe", 125)))
	add("2.7", fr(fin|10, ""), 0, 0)
	add("2.8", fr(fin|10, "unsolicited pong payload"), 0, 0)
	add("2.9", fr(fin|10, "unsolicited pong payload")+fr(fin|9, "ping payload"), 0, 0, pong("ping payload"))
	var pings string
	var pongs []expectedFrame
	for i := range 10 {
		pings += fr(fin|9, fmt.Sprintf("payload-%d", i))
		pongs = append(pongs, pong(fmt.Sprintf("payload-%d", i)))
	}
	add("2.10", pings, 0, 0, pongs...)
	add("2.11", pings, 1, 0, pongs...)
	hello := fr(fin|1, "Hello, world!")
	add("3.1", fr(fin|0x10|1, "Hello, world!"), 0, 1002)
	add("3.2", hello+fr(fin|0x20|1, "Hello, world!")+fr(fin|9, ""), 0, 1002, text("Hello, world!"))
	add("3.3", hello+fr(fin|0x30|1, "Hello, world!")+fr(fin|9, ""), 0, 1002, text("Hello, world!"))
	add("3.4", hello+fr(fin|0x40|1, "Hello, world!")+fr(fin|9, ""), 1, 1002, text("Hello, world!"))
	add("3.5", fr(fin|0x50|2, binaryPing), 0, 1002)
	add("3.6", fr(fin|0x60|9, "Hello, world!"), 0, 1002)
	add("3.7", fr(fin|0x70|8, ""), 0, 1002)
	for j, op := range []byte{3, 11} {
		add(fmt.Sprintf("4.%d.1", j+1), fr(fin|op, ""), 0, 1002)
		add(fmt.Sprintf("4.%d.2", j+1), fr(fin|(op+1), "reserved opcode payload"), 0, 1002)
		for i := range byte(3) {
			chop := []int{0, 0, 1}[i]
			send := hello + fr(fin|(op+2+i), "") + fr(fin|9, "")
			add(fmt.Sprintf("4.%d.%d", j+1, i+3), send, chop, 1002, text("Hello, world!"))
		}
	}
	add("5.1", fr(9, "frag")+fr(fin, "ment"), 0, 1002)
	add("5.2", fr(10, "frag")+fr(fin, "ment"), 0, 1002)
	for i, chop := range []int{0, 0, 1} {
		frags := fr(1, "frag")
		ping := fr(fin|9, "ping payload")
		add(fmt.Sprintf("5.%d", 3+i), frags+fr(fin, "ment"), chop, 0, text("fragment"))
		add(fmt.Sprintf("5.%d", 6+i), frags+ping+fr(fin, "ment"), chop, 0, pong("ping payload"), text("fragment"))
		add(fmt.Sprintf("5.%d", 9+i), fr(fin, "non-continuation payload")+hello, chop, 1002)
		add(fmt.Sprintf("5.%d", 12+i), fr(0, "non-continuation payload")+hello, chop, 1002)
	}
	add("5.15", fr(1, "frag")+fr(fin, "ment")+fr(0, "fragment3")+fr(fin|1, "fragment4"), 0, 1002, text("fragment"))
	add("5.16", fr(0, "fragment1")+fr(1, "fragment2")+fr(fin, "fragment3"), 0, 1002)
	add("5.17", fr(fin, "fragment1")+fr(1, "fragment2")+fr(fin, "fragment3"), 0, 1002)
	add("5.18", fr(1, "fragment1")+fr(fin|1, "fragment2"), 0, 1002)
	five := fr(1, "fragment1") + fr(0, "fragment2") + fr(fin|9, "pongme 1!") + fr(0, "fragment3") + fr(0, "fragment4") + fr(fin|9, "pongme 2!") + fr(fin, "fragment5")
	whole := "fragment1fragment2fragment3fragment4fragment5"
	add("5.19", five, 0, 0, pong("pongme 1!"), pong("pongme 2!"), text(whole))
	add("5.20", five, 1, 0, pong("pongme 1!"), pong("pongme 2!"), text(whole))

	greek := "Hello-µ@ßöäüàá-UTF-8!!"
	bad := "\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80\x65\x64\x69\x74\x65\x64"
	add("6.1.1", fr(fin|1, ""), 0, 0, text(""))
	add("6.1.2", fr(1, "")+fr(0, "")+fr(fin, ""), 0, 0, text(""))
	add("6.1.3", fr(1, "")+fr(0, "middle frame payload")+fr(fin, ""), 0, 0, text("middle frame payload"))
	add("6.2.1", fr(fin|1, greek), 0, 0, text(greek))
	add("6.2.2", fr(1, greek[:12])+fr(fin, greek[12:]), 0, 0, text(greek))
	bytewise := func(s string) string { return encodeFragments(1, s, 1) }
	add("6.2.3", bytewise(greek), 0, 0, text(greek))
	add("6.2.4", bytewise("κόσμε"), 0, 0, text("κόσμε"))
	add("6.3.1", fr(fin|1, bad), 0, 1007)
	add("6.3.2", bytewise(bad), 0, 1007)
	// In 6.4 the rest never arrives: the server must fail as early as possible.
	head := "\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5"
	add("6.4.1", fr(1, head)+fr(0, "\xf4\x90\x80\x80"), 0, 1007)
	add("6.4.2", fr(1, head+"\xf4")+fr(0, "\x90"), 0, 1007)
	long := fr(fin|1, head+"\xf4\x90\x80\x80edited"+strings.Repeat("x", 20000))
	add("6.4.3", long[:40], 0, 1007)
	add("6.4.4", long[:40], 1, 1007)
	valid := []string{"κόσμε", "\x00", "\u0080", "\u0800", "\U00010000", "\x7f", "\u07ff", "\uffff", "\U0010ffff", "\ud7ff", "\ue000", "\ufffd", "\ufffe", "\U0001fffe", "\u0000\u007f"}
	for i, s := range valid {
		add(fmt.Sprintf("6.5-23 valid %d", i+1), fr(fin|1, s), 0, 0, text(s))
		add(fmt.Sprintf("6.5-23 valid %d, bytewise", i+1), bytewise(s), 0, 0, text(s))
	}
	for i, s := range []string{"\x80", "\xbf", "\x80\xbf", "\xc0 ", "\xe0 ", "\xf0 ", "\xf8 ", "\xfc ", "\xc0", "\xe0\x80", "\xf0\x80\x80", "\xf8\x88\x80\x80\x80",
		"\xfe", "\xff", "\xfe\xfe\xff\xff", "\xc0\xaf", "\xe0\x80\xaf", "\xf0\x80\x80\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xc0\x80", "\xed\xa0\x80", "\xed\xaf\xbf", "\xed\xbf\xbf",
		"\xed\xa0\x80\xed\xb0\x80", "\xf4\x90\x80\x80", "\xfc\x84\x80\x80\x80\x80", "\xce\xba\xe1\xbd"} {
		add(fmt.Sprintf("6.6-22 invalid %d", i+1), fr(fin|1, s), 0, 1007)
		add(fmt.Sprintf("6.6-22 invalid %d, bytewise", i+1), bytewise(s+" "), 0, 1007)
	}

	bye := fr(fin|8, closeFrame(1000, ""))
	add("7.1.1", hello+bye, 0, 1000, text("Hello, world!"))
	add("7.1.2", bye+bye, 0, 1000)
	add("7.1.3", bye+fr(fin|9, ""), 0, 1000)
	add("7.1.4", bye+hello, 0, 1000)
	add("7.1.5", fr(1, "fragment1")+bye+fr(fin, "fragment2"), 0, 1000)
	add("7.1.6", fr(fin|1, strings.Repeat("BAsd7&jh23", 6550))+hello+bye+fr(fin|9, ""), 0, 1000, text(strings.Repeat("BAsd7&jh23", 6550)), text("Hello, world!"))
	add("7.3.1", fr(fin|8, ""), 0, -1)
	add("7.3.2", fr(fin|8, "a"), 0, 1002)
	add("7.3.3", bye, 0, 1000)
	add("7.3.4", fr(fin|8, closeFrame(1000, "Hello World!")), 0, 1000)
	add("7.3.5", fr(fin|8, closeFrame(1000, strings.Repeat("*", 123))), 0, 1000)
	add("7.3.6", fr(fin|8, closeFrame(1000, strings.Repeat("*", 124))), 0, 1002)
	add("7.5.1", fr(fin|8, closeFrame(1000, bad)), 0, 1007)
	for i, code := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999} {
		add(fmt.Sprintf("7.7.%d", i+1), fr(fin|8, closeFrame(code, "")), 0, code)
	}
	for i, code := range []int{0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999} {
		add(fmt.Sprintf("7.9.%d", i+1), fr(fin|8, closeFrame(code, "")), 0, 1002)
	}
	add("7.13.1", fr(fin|8, closeFrame(5000, "")), 0, 1002)
	add("7.13.2", fr(fin|8, closeFrame(65535, "")), 0, 1002)
	auto := strings.Repeat("*", 65536)
	large := strings.Repeat(auto, 64)
	add("9.1.6", fr(fin|1, large), 0, 0, text(large))
	add("9.2.6", fr(fin|2, large), 0, 0, expectedFrame{fin | 2, large})
	add("9.3.1", encodeFragments(1, auto, 64), 0, 0, text(auto))
	add("9.4.5", encodeFragments(2, auto, 16<<10), 0, 0, expectedFrame{fin | 2, auto})
	add("9.5.1", fr(fin|1, auto), 64, 0, text(auto))
	add("10.1.1", encodeFragments(1, auto, 1300), 0, 0, text(auto))

	ws := &web.WebSocket{Handler: echoSocket, MaxMessage: len(large)}
	forEachSocketServer(t, ws, func(t *testing.T, addr string) {
		for _, r := range rows {
			t.Run(r.number, func(t *testing.T) {
				t.Parallel()
				c := dialSocket(t, addr, "")
				writePieces(c, r.send, cmp.Or(r.chop, len(r.send)))
				for _, f := range r.want {
					expectFrame(t, c, f.first, f.payload)
				}
				if r.code == 0 {
					c.Send(fr(fin|8, closeFrame(1000, "")))
					r.code = 1000
				}
				expectClose(t, c, r.code)
			})
		}
	})
}

func forEachSocketServer(t *testing.T, ws *web.WebSocket, f func(t *testing.T, addr string)) {
	mux := http.NewServeMux()
	mux.Handle("/ws", ws)
	quick := http.NewServeMux()
	quick.Handle("/ws", web.Quick(ws))
	for i, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			f(t, startServer(t, &tcp.Server{Model: model, Handler: web.Handler([]http.Handler{mux, quick}[i%2]), Limits: tcp.Limits{MaxUnsent: 32 << 20}}))
		})
	}
}

// TestAutobahnCompression reproduces sections 12 and 13.
func TestAutobahnCompression(t *testing.T) {
	ws := &web.WebSocket{Handler: echoSocket, MaxMessage: 4 << 20, Compression: true}
	huge := deflateMessage(strings.Repeat("\x00", ws.MaxMessage+1))
	forEachSocketServer(t, ws, func(t *testing.T, addr string) {
		for i, offer := range []string{"permessage-deflate", "permessage-deflate; client_no_context_takeover; client_max_window_bits",
			"permessage-deflate; server_max_window_bits=8, permessage-deflate; server_max_window_bits=15"} {
			t.Run(fmt.Sprint(i+1), func(t *testing.T) {
				c := testkit.Dial(t, addr)
				header := c.HandshakeWebSocket("/ws", "Sec-WebSocket-Extensions: "+offer+"\r\n")
				if got := header.Get("Sec-WebSocket-Extensions"); !strings.HasPrefix(got, "permessage-deflate") {
					t.Fatalf("the server answered %q with the extensions %q", offer, got)
				}
				for _, n := range []int{0, 64, 1 << 10, 16 << 10, 128 << 10} {
					m := strings.Repeat(`{"id": 1234, "text": "Żółw"} `, n/30)
					for _, fragment := range []int{1 << 20, 256} {
						c.Send(encodeFragments(0x40|1, deflateMessage(m), fragment))
						op, p, err := testkit.ReadFrame(c.R)
						if op&0x40 != 0 {
							p = inflateMessage(t, p)
						}
						if err != nil || op&^0x40 != fin|1 || p != m || (len(m) >= 1024) != (op&0x40 != 0) {
							t.Fatalf("%d bytes came back as %#x, %d bytes, %v", len(m), op, len(p), err)
						}
					}
				}
				if i == 0 {
					c.Send(fr(fin|0x40|2, huge))
					expectClose(t, c, 1009)
				} else {
					c.Send(fr(fin|0x40|2, "\xff\xff\xff\xff")) // no deflate
					expectClose(t, c, 1007)
				}
			})
		}
	})
}

func deflateMessage(m string) string {
	var b bytes.Buffer
	z, _ := flate.NewWriter(&b, 6)
	io.WriteString(z, m)
	z.Flush()
	return strings.TrimSuffix(b.String(), "\x00\x00\xff\xff")
}

func inflateMessage(t testing.TB, p string) string {
	b, err := io.ReadAll(flate.NewReader(strings.NewReader(p + "\x00\x00\xff\xff\x01\x00\x00\xff\xff")))
	testkit.ExpectNoError(t, err)
	return string(b)
}
