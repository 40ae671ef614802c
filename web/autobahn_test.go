package web_test

import (
	"bufio"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// wire is a WebSocket's client that can say anything.
type wire struct {
	t testing.TB
	net.Conn
	r    *bufio.Reader
	head http.Header // of the server's answer
}

func dialSocket(t testing.TB, addr, fields string) *wire {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return upgrade(t, nc, fields)
}

// upgrade makes a connection a WebSocket.
func upgrade(t testing.TB, nc net.Conn, fields string) *wire {
	t.Helper()
	return upgradeAt(t, nc, "/ws", fields)
}

func upgradeAt(t testing.TB, nc net.Conn, path, fields string) *wire {
	t.Helper()
	_ = nc.SetDeadline(time.Now().Add(testkit.Timeout))
	fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s\r\n", path, fields)
	w := &wire{t: t, Conn: nc, r: bufio.NewReader(nc)}
	res, err := http.ReadResponse(w.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatalf("the upgrade was answered with %s %v", res.Status, res.Header)
	}
	w.head = res.Header
	return w
}

// fr is a masked frame of a client.
func fr(first byte, payload string) string {
	b := []byte{first}
	switch n := len(payload); {
	case n <= 125:
		b = append(b, 0x80|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	mask := [4]byte{0x37, 0xfa, 0x21, 0x3d}
	b = append(b, mask[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^mask[i&3])
	}
	return string(b)
}

const fin = 0x80

// closing is the payload of a close.
func closing(code int, reason string) string {
	return string(binary.BigEndian.AppendUint16(nil, uint16(code))) + reason
}

func (w *wire) readFrame() (op byte, payload string, err error) {
	var head [2]byte
	if _, err := io.ReadFull(w.r, head[:]); err != nil {
		return 0, "", err
	}
	size := uint64(head[1])
	switch size {
	case 126:
		var b [2]byte
		_, err = io.ReadFull(w.r, b[:])
		size = uint64(binary.BigEndian.Uint16(b[:]))
	case 127:
		var b [8]byte
		_, err = io.ReadFull(w.r, b[:])
		size = binary.BigEndian.Uint64(b[:])
	}
	if err != nil || size > 64<<20 {
		return 0, "", fmt.Errorf("a frame of %d bytes: %v", size, err)
	}
	p := make([]byte, size)
	_, err = io.ReadFull(w.r, p)
	return head[0], string(p), err
}

// echoSocket answers each message with itself.
var echoSocket = web.OnMessage(func(s web.Socket, kind web.Kind, m []byte) { _ = s.Write(kind, m) })

// frame is what the server is to send.
type frame struct {
	first   byte
	payload string
}

// TestAutobahn reproduces the cases of the Autobahn test suite by their numbers, sections 1
// to 7 and 10. In each the server echoes messages.
func TestAutobahn(t *testing.T) {
	type row struct {
		number string
		send   string
		chop   int     // send it in pieces of so many bytes
		want   []frame // then the connection stays open, or
		code   int     // a close with this code comes
	}
	var rows []row
	add := func(number, send string, chop, code int, want ...frame) {
		rows = append(rows, row{number, send, chop, want, code})
	}
	text := func(s string) frame { return frame{fin | 1, s} }
	pong := func(s string) frame { return frame{fin | 10, s} }
	for i, n := range []int{0, 125, 126, 127, 128, 65535, 65536, 65536} {
		chop := 0
		if i == 7 {
			chop = 997
		}
		add(fmt.Sprintf("1.1.%d", i+1), fr(fin|1, strings.Repeat("*", n)), chop, 0, text(strings.Repeat("*", n)))
		add(fmt.Sprintf("1.2.%d", i+1), fr(fin|2, strings.Repeat("\xfe", n)), chop, 0, frame{fin | 2, strings.Repeat("\xfe", n)})
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
	var pongs []frame
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
	for i := range byte(5) {
		for j, op := range []byte{3 + i, 11 + i} {
			switch i {
			case 0:
				add(fmt.Sprintf("4.%d.1", j+1), fr(fin|op, ""), 0, 1002)
			case 1:
				add(fmt.Sprintf("4.%d.2", j+1), fr(fin|op, "reserved opcode payload"), 0, 1002)
			default:
				chop := 0
				if i == 4 {
					chop = 1
				}
				add(fmt.Sprintf("4.%d.%d", j+1, i+1), hello+fr(fin|op, "")+fr(fin|9, ""), chop, 1002, text("Hello, world!"))
			}
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
	bytewise := func(s string) (all string) {
		for i := range len(s) {
			first := byte(0)
			if i == 0 {
				first = 1
			}
			if i == len(s)-1 {
				first |= fin
			}
			all += fr(first, s[i:i+1])
		}
		return all
	}
	add("6.2.3", bytewise(greek), 0, 0, text(greek))
	add("6.2.4", bytewise("κόσμε"), 0, 0, text("κόσμε"))
	add("6.3.1", fr(fin|1, bad), 0, 1007)
	add("6.3.2", bytewise(bad), 0, 1007)
	// In 6.4 the rest never comes: the server is to fail as soon as it can be known.
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

	bye := fr(fin|8, closing(1000, ""))
	add("7.1.1", hello+bye, 0, 1000, text("Hello, world!"))
	add("7.1.2", bye+bye, 0, 1000)
	add("7.1.3", bye+fr(fin|9, ""), 0, 1000)
	add("7.1.4", bye+hello, 0, 1000)
	add("7.1.5", fr(1, "fragment1")+bye+fr(fin, "fragment2"), 0, 1000)
	add("7.1.6", fr(fin|1, strings.Repeat("BAsd7&jh23", 6550))+hello+bye+fr(fin|9, ""), 0, 1000, text(strings.Repeat("BAsd7&jh23", 6550)), text("Hello, world!"))
	add("7.3.1", fr(fin|8, ""), 0, -1)
	add("7.3.2", fr(fin|8, "a"), 0, 1002)
	add("7.3.3", bye, 0, 1000)
	add("7.3.4", fr(fin|8, closing(1000, "Hello World!")), 0, 1000)
	add("7.3.5", fr(fin|8, closing(1000, strings.Repeat("*", 123))), 0, 1000)
	add("7.3.6", fr(fin|8, closing(1000, strings.Repeat("*", 124))), 0, 1002)
	add("7.5.1", fr(fin|8, closing(1000, bad)), 0, 1007)
	for i, code := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999} {
		add(fmt.Sprintf("7.7.%d", i+1), fr(fin|8, closing(code, "")), 0, code)
	}
	for i, code := range []int{0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999} {
		add(fmt.Sprintf("7.9.%d", i+1), fr(fin|8, closing(code, "")), 0, 1002)
	}
	add("7.13.1", fr(fin|8, closing(5000, "")), 0, 1002)
	add("7.13.2", fr(fin|8, closing(65535, "")), 0, 1002)
	auto := strings.Repeat("*", 65536)
	var thirteen string
	for i := 0; i < len(auto); i += 1300 {
		first := byte(0)
		if i == 0 {
			first = 1
		}
		if i+1300 >= len(auto) {
			first |= fin
		}
		thirteen += fr(first, auto[i:min(i+1300, len(auto))])
	}
	add("10.1.1", thirteen, 0, 0, text(auto))

	eachSocketServer(t, &web.WebSocket{Handler: echoSocket, MaxMessage: 128 << 10}, func(t *testing.T, addr string) {
		for _, r := range rows {
			t.Run(r.number, func(t *testing.T) {
				t.Parallel()
				w := dialSocket(t, addr, "")
				w.say(r.send, r.chop)
				for _, f := range r.want {
					op, p, err := w.readFrame()
					if err != nil || op != f.first || p != f.payload {
						t.Fatalf("a frame %#x of %d bytes %.40q, %v; want %#x, %d bytes %.40q", op, len(p), p, err, f.first, len(f.payload), f.payload)
					}
				}
				if r.code == 0 {
					w.say(fr(fin|8, closing(1000, "")), 0)
					r.code = 1000
				}
				w.wantClose(r.code)
			})
		}
	})
}

// say sends s in pieces of chop bytes, each a segment of its own as far as that can be had.
func (w *wire) say(s string, chop int) {
	if chop == 0 {
		chop = max(len(s), 1)
	}
	for len(s) > 0 {
		n := min(chop, len(s))
		if _, err := io.WriteString(w, s[:n]); err != nil {
			return // the server has seen enough
		}
		s = s[n:]
	}
}

// wantClose wants a close with a code (-1: without one), and then the end.
func (w *wire) wantClose(code int) {
	w.t.Helper()
	op, p, err := w.readFrame()
	switch {
	case err != nil || op != fin|8:
		w.t.Fatalf("a frame %#x %.40q, %v; want a close with %d", op, p, err, code)
	case code < 0 && p != "":
		w.t.Fatalf("a close with %q; want one without a code", p)
	case code > 0 && (len(p) < 2 || int(binary.BigEndian.Uint16([]byte(p))) != code):
		w.t.Fatalf("a close with %q; want %d", p, code)
	}
	if _, err := w.r.ReadByte(); err == nil {
		w.t.Fatal("something behind the close")
	} else if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		w.t.Fatal("the server does not end the connection")
	}
	w.Conn.Close()
}

// eachSocketServer calls f with a server for each model.
func eachSocketServer(t *testing.T, ws *web.WebSocket, f func(t *testing.T, addr string)) {
	mux := http.NewServeMux()
	mux.Handle("/ws", ws)
	quick := http.NewServeMux()
	quick.Handle("/ws", web.Quick(ws))
	for i, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			f(t, serve(t, &tcp.Server{Model: model, Handler: web.Handler([]http.Handler{mux, quick}[i%2]), Limits: tcp.Limits{MaxUnsent: 32 << 20}}))
		})
	}
}

// TestAutobahnMassive is sections 9 (sizes up to 16 MiB, in frames and pieces of several
// sizes), 12 and 13 (compression).
func TestAutobahnMassive(t *testing.T) {
	ws := &web.WebSocket{Handler: echoSocket, MaxMessage: 16 << 20, Compression: true}
	eachSocketServer(t, ws, func(t *testing.T, addr string) {
		exchange := func(t *testing.T, w *wire, first byte, m string, fragment, chop int) {
			t.Helper()
			var out strings.Builder
			for i := 0; i == 0 || i < len(m); i += fragment {
				op := byte(0)
				if i == 0 {
					op = first
				}
				if i+fragment >= len(m) {
					op |= fin
				}
				out.WriteString(fr(op, m[i:min(i+fragment, len(m))]))
			}
			go w.say(out.String(), chop)
			op, p, err := w.readFrame()
			if err != nil || op != fin|first || p != m {
				t.Fatalf("%d bytes in frames of %d and pieces of %d came back as %#x, %d bytes, %v", len(m), fragment, chop, op, len(p), err)
			}
		}
		kinds := map[string]byte{"text": 1, "binary": 2}
		for name, kind := range kinds {
			t.Run("9 "+name, func(t *testing.T) {
				t.Parallel()
				w := dialSocket(t, addr, "")
				for _, n := range []int{64 << 10, 1 << 20, 4 << 20} {
					exchange(t, w, kind, strings.Repeat("*", n), n, 0)
				}
				m := strings.Repeat("0123456789abcdef", 4<<10)
				for _, fragment := range []int{64, 256, 1 << 10, 4 << 10, 16 << 10} {
					exchange(t, w, kind, m, fragment, 0)
				}
				for _, chop := range []int{64, 128, 256, 512, 1024, 2048} {
					exchange(t, w, kind, m, len(m), chop)
				}
				for range 200 {
					exchange(t, w, kind, "short", 5, 0)
				}
				w.say(fr(fin|8, closing(1000, "")), 0)
				w.wantClose(1000)
			})
		}
		for i, offer := range []string{"permessage-deflate", "permessage-deflate; client_no_context_takeover; client_max_window_bits",
			"permessage-deflate; server_max_window_bits=8, permessage-deflate; server_max_window_bits=15"} {
			t.Run(fmt.Sprintf("12-13.%d", i+1), func(t *testing.T) {
				t.Parallel()
				w := dialSocket(t, addr, "Sec-WebSocket-Extensions: "+offer+"\r\n")
				if got := w.head.Get("Sec-WebSocket-Extensions"); !strings.HasPrefix(got, "permessage-deflate") {
					t.Fatalf("the server answered %q with the extensions %q", offer, got)
				}
				for _, n := range []int{0, 16, 64, 256, 1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10} {
					m := strings.Repeat(`{"id": 1234, "text": "Żółw"} `, n/30)
					for _, fragment := range []int{1 << 20, 256} {
						z := compressed(m)
						var out string
						for i := 0; i == 0 || i < len(z); i += fragment {
							op := byte(0)
							if i == 0 {
								op = 0x40 | 1
							}
							if i+fragment >= len(z) {
								op |= fin
							}
							out += fr(op, z[i:min(i+fragment, len(z))])
						}
						w.say(out, 0)
						op, p, err := w.readFrame()
						if op&0x40 != 0 {
							p = decompressed(t, p)
						}
						if err != nil || op&^0x40 != fin|1 || p != m || (len(m) >= 512) != (op&0x40 != 0) {
							t.Fatalf("%d bytes came back as %#x, %d bytes, %v", len(m), op, len(p), err)
						}
					}
				}
				// A bomb, and what is no deflate.
				w.say(fr(fin|0x40|2, compressed(strings.Repeat("\x00", 17<<20))), 0)
				w.wantClose(1009)
			})
		}
		t.Run("13 broken", func(t *testing.T) {
			w := dialSocket(t, addr, "Sec-WebSocket-Extensions: permessage-deflate\r\n")
			w.say(fr(fin|0x40|2, "\xff\xff\xff\xff"), 0)
			w.wantClose(1007)
		})
	})
}

func compressed(m string) string {
	var b bytes.Buffer
	z, _ := flate.NewWriter(&b, 6)
	io.WriteString(z, m)
	z.Flush()
	return strings.TrimSuffix(b.String(), "\x00\x00\xff\xff")
}

func decompressed(t testing.TB, p string) string {
	b, err := io.ReadAll(flate.NewReader(strings.NewReader(p + "\x00\x00\xff\xff\x01\x00\x00\xff\xff")))
	if err != nil {
		t.Error(err)
	}
	return string(b)
}
