package tls13

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"testing"
)

// move replaces a connection by one that is restored from its state.
func (e *testEnd) move() {
	e.t.Helper()
	state := e.AppendState([]byte("prefix"))
	restored, err := RestoreConn(state[len("prefix"):], e.cache)
	if err != nil {
		e.t.Fatalf("RestoreConn: %v", err)
	}
	clear(state)
	e.Conn = restored
}

// TestMove moves both ends after each byte that they receive.
func TestMove(t *testing.T) {
	for suiteName, id := range cipherSuites {
		t.Run(suiteName, func(t *testing.T) {
			server, client := newTestPair(t, id)
			pass := func(to *testEnd, ciphertext []byte) {
				for i := range ciphertext {
					to.receive(ciphertext[i : i+1])
					to.move()
				}
			}
			ticket := append([]byte{messageNewSessionTicket, 0, 0, 100}, make([]byte, 100)...)
			for range 3 {
				partOfTicket := server.sealContent(typeHandshake, ticket[:50]...)
				pass(client, concat(partOfTicket, server.sealContent(typeHandshake, ticket[50:]...), server.writePlaintext("a")))
				partOfUpdate := client.sealContent(typeHandshake, messageKeyUpdate, 0, 0)
				restOfUpdate := client.sealContent(typeHandshake, 1, updateRequested)
				client.advanceSecretAndResetSequence(&client.write)
				client.move()
				pass(server, concat(partOfUpdate, restOfUpdate, client.writePlaintext("b")))
				pass(client, concat(server.takeOutput(), server.writePlaintext("c")))
				pass(server, client.writePlaintext(string(make([]byte, 3000))))
			}
			zeros := string(make([]byte, 3000))
			client.checkGot("acacac")
			server.checkGot("b" + zeros + "b" + zeros + "b" + zeros)
			if client.IsClient() == server.IsClient() || client.CipherSuite() != id || len(client.out) > 0 {
				t.Errorf("the client has output %x, is client: %v, cipher suite %x", client.out, client.IsClient(), client.CipherSuite())
			}
			if server.sentRecords != 6 {
				t.Errorf("the server has sent %d records of data, want 6", server.sentRecords)
			}
			_ = client.CloseWrite(&client.out)
			pass(server, client.takeOutput())
			client.move()
			if err := client.Conn.Write(&client.out, []byte("x")); err != errWriteClosed || server.err != io.EOF || !server.IsReadClosed() {
				t.Errorf("after close_notify and a move: Write %v, Read %v", err, server.err)
			}
			pass(client, concat(server.writePlaintext("d"), []byte{0}))
			client.checkGot("acacacd")
			client.checkBroken()
		})
	}
}

// TestMoveAfterPlaintext moves a connection after Read has returned plaintext, but before it has returned ErrAgain.
func TestMoveAfterPlaintext(t *testing.T) {
	for _, cut := range []int{0, 1, 20} {
		server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
		record := client.writePlaintext("first")
		server.receive(record[:cut])
		want := map[bool]error{true: ErrAgain}[cut == 0] // a record in pieces is returned alone
		if p, _, err := server.Conn.ReadInPlace(&server.out, record[cut:]); string(p) != "first" || err != want {
			t.Fatalf("Read: %q, %v; want %v", p, err, want)
		}
		if server.HasPartialRecord() {
			t.Error("a complete record is reported as a partial one")
		}
		server.move()
		server.receive(client.writePlaintext("second"))
		if server.checkGot("second"); server.err != nil {
			t.Errorf("a record in pieces of %d and %d bytes: %v", cut, len(record)-cut, server.err)
		}
	}
}

// TestMoveKeepsCount checks that a move does not reset the count of records without data.
func TestMoveKeepsCount(t *testing.T) {
	server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
	for range maxIdleRecords + 1 {
		server.move()
		server.receive(client.sealContent(typeApplicationData))
	}
	if alertOf(server.err, "local error") != int(alertUnexpectedMessage) {
		t.Errorf("Read: %v", server.err)
	}
}

// TestBadState restores states that are truncated or changed.
func TestBadState(t *testing.T) {
	server, client := newTestPair(t, tls.TLS_AES_256_GCM_SHA384)
	server.receive(client.sealContent(typeHandshake, messageKeyUpdate, 0))
	withoutPartial := len(server.AppendState(nil))
	server.receive(client.writePlaintext("message")[:20])
	state := server.AppendState(nil)
	with := func(offset int, value byte) []byte {
		p := bytes.Clone(state)
		p[offset] = value
		return p
	}
	for n := range withoutPartial {
		checkBadState(t, "truncated", state[:n])
	}
	checkBadState(t, "version 2", with(0, 2))
	checkBadState(t, "cipher suite 2", with(1, 2))
	checkBadState(t, "flags", with(2, byte(partialIsUsed)))
	checkBadState(t, "length of message", with(3, messageHeaderLen+1))
	longest := append([]byte{typeApplicationData, 3, 3, maxCiphertext >> 8, maxCiphertext & 0xff}, make([]byte, maxCiphertext)...)
	checkBadState(t, "a whole record", append(bytes.Clone(state[:withoutPartial]), longest...))
	checkBadState(t, "more than a record", with(withoutPartial+4, 0))
}

func checkBadState(t *testing.T, what string, state []byte) {
	t.Helper()
	if c, err := RestoreConn(state, new(CipherCache)); err != errBadState {
		t.Errorf("%s: %v, want %v; %d bytes of memory", what, err, errBadState, c.PartialRecordMemory())
	}
}

func useState(state, ciphertext []byte) {
	cache := new(CipherCache)
	defer cache.Close()
	c, err := RestoreConn(state, cache)
	if err != nil {
		return
	}
	var out testOutput
	for err == nil || errors.Is(err, ErrAgain) && len(ciphertext) > 0 {
		var used int
		_, used, err = c.ReadInPlace(&out, ciphertext)
		ciphertext = ciphertext[used:]
	}
	_ = c.Write(&out, []byte("x"))
	_ = c.CloseWrite(&out)
	c.AppendState(nil)
	c.Close()
}

// FuzzRestoreConn restores arbitrary states and uses them. Nothing may panic.
func FuzzRestoreConn(f *testing.F) {
	for _, id := range cipherSuites {
		server, client := newTestPair(f, id)
		f.Add(server.AppendState(nil), client.writePlaintext("message"))
		record := client.writePlaintext("message")
		server.receive(client.sealContent(typeHandshake, messageKeyUpdate, 0))
		server.read.sequence -= 2
		server.receive(record[:20])
		f.Add(server.AppendState(nil), record[20:])
	}
	f.Fuzz(func(t *testing.T, state, ciphertext []byte) { useState(state, bytes.Clone(ciphertext)) })
}

// TestConnClose checks that the secrets are erased.
func TestConnClose(t *testing.T) {
	server, client := newTestPair(t, tls.TLS_AES_256_GCM_SHA384)
	server.receive(concat(client.writePlaintext("x"), client.writePlaintext("y")[:10]))
	server.writePlaintext("z")
	rare, cache, read, write := server.rare, server.cache, server.read.secret, server.write.secret
	if cache.lookup(&read, false) == nil || cache.lookup(&write, false) == nil {
		t.Fatal("the ciphers are not in the cache")
	}
	server.Conn.Close()
	if cache.lookup(&read, false) != nil || cache.lookup(&write, false) != nil {
		t.Error("the ciphers are still in the cache")
	}
	if server.read != (direction{}) || server.write != (direction{}) || rare.tails != [2][16]byte{} || rare.partial != nil || server.rare != nil {
		t.Errorf("after Close: %+v, %+v", server.Conn, rare)
	}
	server.checkBroken()
}

// TestKeyUpdateRemovesCipher checks that the cipher of an old key does not stay in the cache.
func TestKeyUpdateRemovesCipher(t *testing.T) {
	server, client := newTestPair(t, tls.TLS_AES_128_GCM_SHA256)
	server.receive(client.writePlaintext("x"))
	server.writePlaintext("y")
	read, write := server.read.secret, server.write.secret
	server.receive(client.sealKeyUpdate(updateRequested))
	server.writePlaintext("after the answer")
	if server.cache.lookup(&read, false) != nil || server.cache.lookup(&write, false) != nil {
		t.Error("the ciphers of the old keys are in the cache")
	}
}
