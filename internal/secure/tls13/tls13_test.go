package tls13

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// TestEcho echoes messages of all sizes in any fragmentation.
func TestEcho(t *testing.T) {
	for lenName, pieceLen := range pieceLens {
		t.Run(lenName, func(t *testing.T) {
			server, client := newTestPair(t, tls.TLS_AES_256_GCM_SHA384)
			var sent []byte
			var want string
			for i, n := range []int{1, 0, 1000, maxPlaintext, maxPlaintext + 1, 40_000} {
				message := string(randomBytes(uint64(i), n))
				want += message
				sent = append(sent, client.writePlaintext(message)...)
			}
			server.receivePieces(sent, pieceLen)
			server.checkGot(want)
			client.receivePieces(server.writePlaintext(want), pieceLen)
			client.checkGot(want)
			if server.err != nil || client.err != nil || server.keepsPartial() || client.keepsPartial() {
				t.Errorf("server: %v, client: %v; want no error and no partial record", server.err, client.err)
			}
		})
	}
}

// TestJoinedRecords checks that Read returns the data of all complete records together with the error that follows,
// except for a record of which the first part has come before.
func TestJoinedRecords(t *testing.T) {
	for _, c := range []struct {
		name string
		last func(*testEnd) []byte
		want string
	}{
		{"nothing", func(*testEnd) []byte { return nil }, ErrAgain.Error()},
		{"a part of a record", func(*testEnd) []byte { return []byte{typeApplicationData, 3, 3} }, ErrAgain.Error()},
		{"close_notify", func(c *testEnd) []byte { _ = c.CloseWrite(&c.out); return c.takeOutput() }, "EOF"},
		{"a fatal alert", func(c *testEnd) []byte { return c.sealContent(typeAlert, alertFatal, 40) }, "remote error: tls: handshake failure"},
		{"a violation", func(*testEnd) []byte { return []byte{0} }, "local error: tls: unexpected message"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
			first := client.writePlaintext("first ")
			server.receive(first[:10])
			stream := concat(first[10:], client.writePlaintext("second "), client.sealKeyUpdate(updateNotRequested),
				client.writePlaintext("third "), client.sealContent(typeApplicationData), client.writePlaintext("fourth"), c.last(client))
			p, used, err := server.Conn.ReadInPlace(&server.out, stream)
			if string(p) != "first " || used != len(first)-10 || err != nil {
				t.Fatalf("Read: %q, %d, %v; want the first record alone", p, used, err)
			}
			p, used, err = server.Conn.ReadInPlace(&server.out, stream[used:])
			if string(p) != "second third fourth" || fmt.Sprint(err) != c.want {
				t.Errorf("Read: %q, %d, %v; want the others and %s", p, used, err, c.want)
			}
			if c.name == "a fatal alert" {
				server.checkBroken()
			}
		})
	}
}

// TestPadding receives padded records of all sizes that are allowed, and a record of another version: RFC 8446, section
// 5.1.
func TestPadding(t *testing.T) {
	server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
	full := bytes.Repeat([]byte("x"), maxPlaintext)
	for _, c := range []struct{ content, padding int }{{0, 0}, {0, 1}, {1, maxPlaintext - 1}, {0, maxPlaintext}, {100, 16_000}, {maxPlaintext, 0}} {
		inner := append(append(full[:c.content:c.content], typeApplicationData), make([]byte, c.padding)...)
		server.got = nil
		server.receive(client.seal(inner))
		if server.err != nil {
			t.Fatalf("%d bytes and %d of padding: %v", c.content, c.padding, server.err)
		}
		server.checkGot(string(full[:c.content]))
	}
	server.got = nil
	server.receive(client.sealVersion(0x0301, []byte{'x', typeApplicationData}))
	server.checkGot("x")
	server.receive(client.seal([]byte{messageKeyUpdate, 0, 0, 1, updateNotRequested, typeHandshake, 0, 0, 0}))
	client.advanceSecretAndResetSequence(&client.write)
	server.receive(client.seal([]byte{alertWarning, byte(alertCloseNotify), typeAlert, 0, 0, 0}))
	if server.err != io.EOF {
		t.Errorf("a padded close_notify: %v, want EOF", server.err)
	}
}

// TestViolations sends data, a violation of the protocol and more data. Only the data before is delivered, and the
// alert that RFC 8446 requires is sent.
func TestViolations(t *testing.T) {
	content := func(contentType byte, content ...byte) func(*testEnd) []byte {
		return func(c *testEnd) []byte { return c.sealContent(contentType, content...) }
	}
	raw := func(p ...byte) func(*testEnd) []byte { return func(*testEnd) []byte { return p } }
	inner := func(inner ...byte) func(*testEnd) []byte { return func(c *testEnd) []byte { return c.seal(inner) } }
	inOrder := func(sends ...func(*testEnd) []byte) func(*testEnd) []byte {
		return func(c *testEnd) (p []byte) {
			for _, send := range sends {
				p = append(p, send(c)...)
			}
			return p
		}
	}
	changed := func(offset int) func(*testEnd) []byte {
		return func(c *testEnd) []byte {
			p := c.sealContent(typeApplicationData, []byte("changed")...)
			p[(offset+len(p))%len(p)] ^= 1
			return p
		}
	}
	empty, cancel := content(typeApplicationData), content(typeAlert, alertWarning, byte(alertUserCanceled))
	update := func(c *testEnd) []byte { return c.sealKeyUpdate(updateNotRequested) }
	partOfUpdate := content(typeHandshake, messageKeyUpdate, 0)
	cases := []struct {
		name string
		send func(*testEnd) []byte
		want tls.AlertError
	}{
		{"length over 2^14+256", raw(typeApplicationData, 3, 3, 0x41, 0x01), alertRecordOverflow},
		{"inner plaintext over 2^14+1", inner(append(make([]byte, maxPlaintext+1), typeApplicationData)...), alertRecordOverflow},
		{"longest ciphertext", inner(append(make([]byte, maxCiphertext-tagLen-1), typeApplicationData)...), alertRecordOverflow},
		{"padding only", inner(0, 0, 0), alertUnexpectedMessage},
		{"nothing inside", inner(), alertUnexpectedMessage},
		{"changed tag", changed(-1), alertBadRecordMAC},
		{"changed version", changed(2), alertBadRecordMAC}, // the header is authenticated, although the version is ignored
		{"shorter than a tag", raw(append([]byte{typeApplicationData, 3, 3, 0, 15}, make([]byte, 15)...)...), alertBadRecordMAC},
		{"repeated record", func(c *testEnd) []byte { p := empty(c); return concat(p, p) }, alertBadRecordMAC},
		{"old key after KeyUpdate", content(typeHandshake, messageKeyUpdate, 0, 0, 1, updateNotRequested), alertBadRecordMAC},
		{"new key without KeyUpdate", func(c *testEnd) []byte { update(c); return empty(c) }, alertBadRecordMAC},
		{"zero-length handshake", content(typeHandshake), alertUnexpectedMessage},
		{"zero-length alert", content(typeAlert), alertUnexpectedMessage},
		{"alert of 1 byte", content(typeAlert, alertWarning), alertDecodeError},
		{"alert of 3 bytes", content(typeAlert, alertWarning, 0, 0), alertDecodeError},
		{"KeyUpdate with value 2", content(typeHandshake, messageKeyUpdate, 0, 0, 1, 2), alertIllegalParameter},
		{"KeyUpdate of length 0", content(typeHandshake, messageKeyUpdate, 0, 0, 0), alertDecodeError},
		{"KeyUpdate of length 257", content(typeHandshake, messageKeyUpdate, 0, 1, 1), alertDecodeError},
		{"KeyUpdate of length 65537", content(typeHandshake, messageKeyUpdate, 1, 0, 1), alertDecodeError},
		{"two KeyUpdates in a record", content(typeHandshake, messageKeyUpdate, 0, 0, 1, 0, messageKeyUpdate, 0, 0, 1, 0), alertUnexpectedMessage},
		{"fragmented KeyUpdate before the end", inOrder(partOfUpdate, content(typeHandshake, 0, 1, 0, 0)), alertUnexpectedMessage},
		{"NewSessionTicket from a client", content(typeHandshake, messageNewSessionTicket, 0, 0, 1, 0), alertUnexpectedMessage},
		{"data in a message", inOrder(partOfUpdate, content(typeApplicationData, 'x')), alertUnexpectedMessage},
		{"data before the last byte of a message", inOrder(content(typeHandshake, messageKeyUpdate, 0, 0, 1), empty), alertUnexpectedMessage},
		{"close_notify in a message", inOrder(partOfUpdate, content(typeAlert, alertWarning, byte(alertCloseNotify))), alertUnexpectedMessage},
		{"too many empty records", inOrder(slices.Repeat([]func(*testEnd) []byte{empty}, maxIdleRecords+1)...), alertUnexpectedMessage},
		{"too many KeyUpdates", inOrder(slices.Repeat([]func(*testEnd) []byte{update}, maxIdleRecords+1)...), alertUnexpectedMessage},
		{"too many user_canceled", inOrder(slices.Repeat([]func(*testEnd) []byte{cancel}, maxIdleRecords+1)...), alertUnexpectedMessage},
		{"change_cipher_spec", raw(20, 3, 3, 0, 1, 1), alertUnexpectedMessage},
		{"unencrypted handshake record", raw(typeHandshake), alertUnexpectedMessage},
		{"unencrypted record of an unknown type", raw(24), alertUnexpectedMessage},
		{"encrypted change_cipher_spec", content(20, 1), alertUnexpectedMessage},
		{"content of an unknown type", content(24, 1), alertUnexpectedMessage},
		{"HelloRequest", content(typeHandshake, 0), alertUnexpectedMessage},
		{"ClientHello", content(typeHandshake, 1), alertUnexpectedMessage},
		{"handshake message of an unknown type", content(typeHandshake, 25), alertUnexpectedMessage},
	}
	for _, c := range cases {
		for _, lenName := range []string{"by 1", "at once"} {
			t.Run(c.name+"/"+lenName, func(t *testing.T) {
				server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
				stream := client.writePlaintext("before")
				stream = append(stream, c.send(client)...)
				stream = append(stream, client.writePlaintext("after")...)
				server.receivePieces(stream, pieceLens[lenName])
				server.checkGot("before")
				if alertOf(server.err, "local error") != int(c.want) {
					t.Errorf("Read: %v, want %v", server.err, c.want)
				}
				records := client.open(server.takeOutput())
				if want := []byte{alertFatal, byte(c.want), typeAlert}; len(records) != 1 || !bytes.Equal(records[0], want) {
					t.Errorf("sent %x, want the record %x", records, want)
				}
				server.checkBroken()
				if server.keepsPartial() {
					t.Error("a partial record is kept")
				}
			})
		}
	}
}

// TestIdleRecords sends as many records without data as are allowed, before each event that resets or ends the count.
func TestIdleRecords(t *testing.T) {
	for _, c := range []struct {
		contentType byte
		content     []byte
		err, got    string
	}{
		{typeApplicationData, []byte("data"), "<nil>", "datadata"},
		{typeAlert, []byte{alertWarning, byte(alertCloseNotify)}, "EOF", ""},
		{typeAlert, []byte{alertFatal, byte(alertDecodeError)}, "remote error: tls: error decoding message", ""},
	} {
		server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
		for range 2 {
			for range maxIdleRecords {
				server.receive(client.sealContent(typeApplicationData))
			}
			server.receive(client.sealContent(c.contentType, c.content...))
		}
		if server.checkGot(c.got); fmt.Sprint(server.err) != c.err {
			t.Errorf("Read before content %x: %v, want %s", c.content, server.err, c.err)
		}
	}
}

// TestUpdateKeys checks that no second KeyUpdate is requested before the first request is answered: RFC 8446, section
// 4.6.3.
func TestUpdateKeys(t *testing.T) {
	server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
	for i, want := range []byte{updateRequested, updateNotRequested, updateRequested} {
		if i == 2 {
			client.receive(concat(server.takeOutput(), server.writePlaintext("x"))) // with the answer
		}
		client.move()
		testkit.RequireNoError(t, client.UpdateKeys(&client.out))
		record := client.takeOutput()
		reader := *server
		if got := reader.open(record)[0][messageHeaderLen]; got != want {
			t.Errorf("KeyUpdate %d requests %d, want %d", i, got, want)
		}
		server.receive(record)
	}
	if server.err != nil || client.err != nil {
		t.Errorf("server: %v, client: %v", server.err, client.err)
	}
}

// TestAutomaticKeyUpdate sends as many records as one key may encrypt, and one more of each kind.
func TestAutomaticKeyUpdate(t *testing.T) {
	for want, send := range map[string]func(*testEnd){
		"<nil>":                                 func(c *testEnd) { _ = c.Conn.Write(&c.out, []byte("data")) },
		"EOF":                                   func(c *testEnd) { _ = c.CloseWrite(&c.out) },
		"remote error: tls: unexpected message": func(c *testEnd) { c.receive([]byte{0}) },
	} {
		server, client := newTestPair(t, tls.TLS_AES_256_GCM_SHA384)
		client.write.sequence, server.read.sequence = maxRecordsPerKey-1, maxRecordsPerKey-1
		stream := client.writePlaintext("last")
		if n := client.write.sequence; n != maxRecordsPerKey {
			t.Fatalf("%d records were sent with the key, want %d", n, maxRecordsPerKey)
		}
		send(client)
		if n := client.write.sequence; n != 1 {
			t.Errorf("%d records were sent with the new key, want 1", n)
		}
		server.receive(append(stream, client.takeOutput()...))
		if fmt.Sprint(server.err) != want || len(server.out) > 0 {
			t.Errorf("received %v, want %s; sent %x", server.err, want, server.out)
		}
	}
}

// TestTickets sends NewSessionTicket messages to a client, which skips them.
func TestTickets(t *testing.T) {
	ticket := func(n int) []byte {
		return append([]byte{messageNewSessionTicket, byte(n >> 16), byte(n >> 8), byte(n)}, randomBytes(1, n)...)
	}
	update := []byte{messageKeyUpdate, 0, 0, 1, updateNotRequested}
	for name, c := range map[string]struct {
		messages []byte
		alert    int // or -1
	}{
		"one byte":               {ticket(1), -1},
		"several":                {concat(ticket(100), ticket(2000), ticket(1)), -1},
		"with KeyUpdate":         {concat(ticket(100), update), -1},
		"longest":                {ticket(maxMessage - 1), -1},
		"too long":               {ticket(maxMessage), int(alertDecodeError)},
		"much too long":          {ticket(0xffffff)[:20], int(alertDecodeError)},
		"without content":        {ticket(0), int(alertDecodeError)},
		"before another message": {concat(ticket(100), []byte{1}), int(alertUnexpectedMessage)},
	} {
		for _, size := range []int{len(c.messages)/10 + 1, len(c.messages)/3 + 1, maxPlaintext} {
			t.Run(fmt.Sprintf("%s/records of %d", name, size), func(t *testing.T) {
				server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
				stream := server.writePlaintext("before ")
				for fragment := range slices.Chunk(c.messages, min(size, maxPlaintext)) {
					stream = append(stream, server.sealContent(typeHandshake, fragment...)...)
				}
				want := "before "
				if c.alert < 0 {
					want += "after"
				}
				if bytes.HasSuffix(c.messages, update) {
					server.advanceSecretAndResetSequence(&server.write)
				}
				client.receivePieces(append(stream, server.writePlaintext("after")...), pieceLens["random"])
				client.checkGot(want)
				if alertOf(client.err, "local error") != c.alert || client.hasPartialMessage() && c.alert < 0 {
					t.Errorf("Read: %v, want alert %d", client.err, c.alert)
				}
			})
		}
	}
	server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
	client.receive(concat(server.sealContent(typeHandshake, ticket(100)[:50]...), server.writePlaintext("data in a ticket")))
	if alertOf(client.err, "local error") != int(alertUnexpectedMessage) {
		t.Errorf("data in a ticket: %v", client.err)
	}
}

// TestClose closes one direction after the other.
func TestClose(t *testing.T) {
	server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
	stream := client.writePlaintext("before")
	for range 2 { // the second call has no effect
		testkit.RequireNoError(t, client.CloseWrite(&client.out))
	}
	if err := client.Conn.Write(&client.out, []byte("x")); err != errWriteClosed {
		t.Errorf("Write after CloseWrite: %v, want %v", err, errWriteClosed)
	}
	stream = append(stream, client.takeOutput()...)
	if server.receive(stream[:len(stream)-1]); server.IsReadClosed() {
		t.Error("closed before the end of close_notify")
	}
	server.receive(concat(stream[len(stream)-1:], client.sealContent(typeApplicationData, 'x'), []byte("ignored")))
	server.checkGot("before")
	if server.keepsPartial() {
		t.Error("a partial record is kept after close_notify")
	}
	if _, used, err := server.Conn.ReadInPlace(&server.out, []byte("ignored")); server.err != io.EOF || err != io.EOF || used != 0 {
		t.Errorf("Read: %v, then %v, used %d; want EOF", server.err, err, used)
	}
	if !server.IsReadClosed() || client.IsReadClosed() || len(server.out) > 0 {
		t.Errorf("server closed: %v, client closed: %v, output %x", server.IsReadClosed(), client.IsReadClosed(), server.out)
	}
	stream = server.writePlaintext("still open")
	_ = server.CloseWrite(&server.out)
	client.receive(append(stream, server.takeOutput()...))
	client.checkGot("still open")
	if client.err != io.EOF {
		t.Errorf("Read: %v, want EOF", client.err)
	}
	server, client = newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
	_ = server.CloseWrite(&server.out)
	server.out = nil
	server.receive(concat(client.sealKeyUpdate(updateRequested), client.writePlaintext("after")))
	if server.checkGot("after"); len(server.out) > 0 || server.err != nil {
		t.Errorf("a KeyUpdate after CloseWrite: %v, sent %x; want no answer", server.err, server.out)
	}
	server.receive([]byte{0})
	if alertOf(server.err, "local error") != int(alertUnexpectedMessage) || len(server.out) > 0 {
		t.Errorf("a violation after CloseWrite: %v, sent %x; want no alert after close_notify", server.err, server.out)
	}
}

// TestRecordSizes checks that the records of a stream grow to 16 KiB and stay so.
func TestRecordSizes(t *testing.T) {
	server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
	var sizes []int
	for range 2 {
		for _, inner := range server.open(client.writePlaintext(string(make([]byte, 300_000)))) {
			sizes = append(sizes, len(inner)-1)
		}
	}
	for i, n := range sizes[:20] {
		if want := min((i+1)*(1208-HeaderLen-1-tagLen), 16<<10); n != want {
			t.Errorf("record %d has %d bytes, want %d", i, n, want)
		}
	}
	if n := slices.Max(sizes); n != 16<<10 || sizes[len(sizes)-2] != n {
		t.Errorf("the largest record has %d bytes, the last but one %d", n, sizes[len(sizes)-2])
	}
}

// TestPartialRecordMemory checks what is kept of an incomplete record: a slice for a small part, a pooled buffer for a
// large one, and nothing after a complete record.
func TestPartialRecordMemory(t *testing.T) {
	server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
	client.sentRecords = recordsUntilFull
	message := string(make([]byte, maxPlaintext))
	for _, c := range []struct{ partLen, min, max int }{{1, 1, 8}, {4, 4, 8}, {5, 5, maxSmallPartial}, {100, 100, maxSmallPartial}, {2048, 2048, 2048}, {2049, MaxRecord, MaxRecord}, {16_000, MaxRecord, MaxRecord}} {
		record := client.writePlaintext(message)
		server.receive(record[:c.partLen])
		if n := server.PartialRecordMemory(); n < c.min || n > c.max || !server.HasPartialRecord() {
			t.Errorf("%d bytes take %d bytes of memory, want %d to %d", c.partLen, n, c.min, c.max)
		}
		server.receive(record[c.partLen:])
		if server.keepsPartial() || server.rare != nil {
			t.Errorf("%d bytes of memory are kept after a complete record", server.PartialRecordMemory())
		}
	}
	record := client.writePlaintext("a small record")
	server.receive(record[:10])
	if n := server.PartialRecordMemory(); n != len(record) {
		t.Errorf("a part of a record of %d bytes takes %d bytes", len(record), n)
	}
	server.receive(record[10:])
	if testkit.RaceEnabled {
		return
	}
	record = client.writePlaintext(message)
	part := bytes.Clone(record)
	allocs := testing.AllocsPerRun(100, func() {
		server.read.sequence = client.write.sequence - 1
		copy(part, record)
		_, _, err := server.Conn.ReadInPlace(&server.out, part[:12_000])
		p, _, err2 := server.Conn.ReadInPlace(&server.out, part[12_000:])
		_, _, err3 := server.Conn.ReadInPlace(&server.out, nil)
		if err != ErrAgain || err2 != nil || err3 != ErrAgain || len(p) != maxPlaintext {
			t.Fatal(err, err2, err3, len(p))
		}
	})
	if allocs > 1 { // a rareState
		t.Errorf("%v allocations for a record in two pieces, want 1", allocs)
	}
}

// TestAllocs checks that a message of 64 bytes needs no allocation.
func TestAllocs(t *testing.T) {
	if testkit.RaceEnabled { // then sync.Pool drops items at random
		return
	}
	server, client := newTestPair(t, tls.TLS_AES_256_GCM_SHA384)
	message, out := make([]byte, 64), make(testOutput, 0, 1000)
	allocs := testing.AllocsPerRun(1000, func() {
		out = out[:0]
		testkit.RequireNoError(t, client.Conn.Write(&out, message))
		plaintext, used, err := server.Conn.ReadInPlace(&out, out)
		if len(plaintext) != 64 || used != len(out) || err != ErrAgain {
			t.Fatal(plaintext, used, err)
		}
	})
	if allocs > 0 {
		t.Errorf("Write and Read: %v allocations, want none", allocs)
	}
}
