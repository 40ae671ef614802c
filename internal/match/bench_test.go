package match

import (
	"strings"
	"testing"
)

// BenchmarkFeed feeds pieces of one answer each, of a few, and of a part of one.
func BenchmarkFeed(b *testing.B) {
	page := "HTTP/1.1 200 OK\r\nServer: nginx/1.27.1\r\nDate: Sat, 21 Nov 2026 22:57:11 GMT\r\nContent-Type: text/plain\r\nContent-Length: 13\r\nConnection: keep-alive\r\n\r\nHello, World!"
	for _, bench := range []struct{ name, spec, in string }{
		{"delimiter1/short", `delimiter:\n`, repeat(31) + "\n"},
		{"delimiter1/64x64", `delimiter:\n`, strings.Repeat(repeat(63)+"\n", 64)},
		{"delimiter1/64KiB", `delimiter:\n`, repeat(64<<10-1) + "\n"},
		{"delimiter2/short", `delimiter:\r\n`, repeat(30) + "\r\n"},
		{"delimiter2/64x64", `delimiter:\r\n`, strings.Repeat(repeat(62)+"\r\n", 64)},
		{"delimiter2/64KiB", `delimiter:\r\n`, repeat(64<<10-2) + "\r\n"},
		{"marker8/64KiB", "marker:PUBLISH:", repeat(64<<10-8) + "PUBLISH:"},
		{"length/short", "length:4be", "\x00\x00\x00\x1c" + repeat(28)},
		{"length/128x32", "length:4be", strings.Repeat("\x00\x00\x00\x1c"+repeat(28), 128)},
		{"length/64KiB", "length:4be", "\x00\x00\xff\xfc" + repeat(64<<10-4)},
		{"bytes/short", "bytes:32", repeat(32)},
		{"http/short", "http", page},
		{"http/16", "http", strings.Repeat(page, 16)},
		{"http/64KiB", "http", strings.Replace(page, "13", "65536", 1) + repeat(64<<10-13)},
		{"http/chunked", "http", chunked},
	} {
		b.Run(bench.name, func(b *testing.B) {
			r := mustParse(b, bench.spec)
			in := []byte(bench.in)
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			var s State
			statuses := 0
			for b.Loop() {
				if used, answers, err := r.Feed(&s, in, func(status int) { statuses += status }); used != len(in) || answers == 0 || err != nil {
					b.Fatal(used, answers, err)
				}
			}
		})
	}
}
