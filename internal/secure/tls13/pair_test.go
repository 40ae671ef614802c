package tls13

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	mrand "math/rand/v2"
	"net"
	"slices"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var cipherSuites = map[string]uint16{
	"AES-128": tls.TLS_AES_128_GCM_SHA256,
	"AES-256": tls.TLS_AES_256_GCM_SHA384,
}

// testOutput is an Output that keeps the records.
type testOutput []byte

func (o *testOutput) AppendSpace(n int) []byte {
	*o = slices.Grow(*o, n)[:len(*o)+n]
	return (*o)[len(*o)-n:]
}

// testEnd is one end of a connection.
type testEnd struct {
	Conn
	t   testing.TB
	out testOutput
	got []byte // plaintext
	err error  // of Read, unless it is ErrAgain
}

func newTestPair(t testing.TB, cipherSuite uint16) (server, client *testEnd) {
	cache := new(CipherCache)
	t.Cleanup(cache.Close)
	suite, err := parseSuite(cipherSuite)
	testkit.RequireNoError(t, err)
	return newTestPairOf(t, suite, randomBytes(1, suite.secretLen()), randomBytes(2, suite.secretLen()), cache)
}

func newTestPairOf(t testing.TB, s suite, ofClient, ofServer []byte, cc *CipherCache) (server, client *testEnd) {
	server, client = &testEnd{t: t}, &testEnd{t: t}
	var err, err2 error
	server.Conn, err = NewConn(s.id(), false, ofClient, ofServer, 0, cc)
	client.Conn, err2 = NewConn(s.id(), true, ofServer, ofClient, 0, cc)
	testkit.ExpectNoError(t, errors.Join(err, err2))
	return server, client
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	mrand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}

// receive passes ciphertext to Read until it returns an error.
func (e *testEnd) receive(ciphertext []byte) {
	e.t.Helper()
	ciphertext = bytes.Clone(ciphertext) // Read decrypts in place
	for e.err == nil {
		plaintext, used, err := e.Conn.ReadInPlace(&e.out, ciphertext)
		e.got = append(e.got, plaintext...)
		ciphertext = ciphertext[used:]
		switch {
		case err == nil && len(plaintext) == 0:
			e.t.Fatal("Read: neither plaintext nor an error")
		case cap(plaintext) > len(plaintext):
			e.t.Fatal("Read: what is appended to the plaintext would overwrite other bytes")
		case err == ErrAgain && len(ciphertext) > 0:
			e.t.Fatalf("Read: ErrAgain, but %d bytes are not used", len(ciphertext))
		case err == ErrAgain:
			return
		}
		e.err = err
	}
}

// receivePieces passes ciphertext to Read in pieces.
func (e *testEnd) receivePieces(ciphertext []byte, pieceLen func() int) {
	e.t.Helper()
	for len(ciphertext) > 0 {
		n := min(pieceLen(), len(ciphertext))
		e.receive(ciphertext[:n])
		ciphertext = ciphertext[n:]
	}
}

var pieceLens = map[string]func() int{
	"by 1":    func() int { return 1 },
	"by 7":    func() int { return 7 },
	"random":  func() int { return 1 + mrand.IntN(20_000) },
	"at once": func() int { return 1 << 30 },
}

func (e *testEnd) takeOutput() []byte {
	out := e.out
	e.out = nil
	return out
}

// writePlaintext writes plaintext and returns the records.
func (e *testEnd) writePlaintext(plaintext string) []byte {
	e.t.Helper()
	if err := e.Conn.Write(&e.out, []byte(plaintext)); err != nil {
		e.t.Fatalf("Write: %v", err)
	}
	return e.takeOutput()
}

// seal encrypts an inner plaintext, which consists of content, type and padding, as the next record of e.
func (e *testEnd) seal(inner []byte) []byte { return e.sealVersion(0x0303, inner) }

func (e *testEnd) sealVersion(version uint16, inner []byte) []byte {
	c := e.suite.newCipher(e.appendSecret(nil, &e.write))
	header := binary.BigEndian.AppendUint16([]byte{typeApplicationData}, version)
	header = binary.BigEndian.AppendUint16(header, uint16(len(inner)+tagLen))
	e.write.sequence++
	return c.aead.Seal(bytes.Clone(header), c.nonceFor(e.write.sequence-1), inner, header)
}

func (e *testEnd) sealContent(contentType byte, content ...byte) []byte {
	return e.seal(append(bytes.Clone(content), contentType))
}

// sealKeyUpdate returns a KeyUpdate and changes the key for sending.
func (e *testEnd) sealKeyUpdate(request byte) []byte {
	record := e.sealContent(typeHandshake, messageKeyUpdate, 0, 0, 1, request)
	e.advanceSecretAndResetSequence(&e.write)
	return record
}

// open decrypts records that have arrived, without handling them.
func (e *testEnd) open(records []byte) (inner [][]byte) {
	e.t.Helper()
	c := e.suite.newCipher(e.appendSecret(nil, &e.read))
	for len(records) > 0 {
		n := HeaderLen + int(binary.BigEndian.Uint16(records[3:]))
		p, err := c.aead.Open(nil, c.nonceFor(e.read.sequence), records[HeaderLen:n], records[:HeaderLen])
		if err != nil {
			e.t.Fatalf("record %d: %v", e.read.sequence, err)
		}
		e.read.sequence++
		inner, records = append(inner, p), records[n:]
	}
	return inner
}

func (e *testEnd) checkGot(want string) {
	e.t.Helper()
	if string(e.got) != want {
		e.t.Errorf("received %.50q (%d bytes), want %.50q (%d bytes)", e.got, len(e.got), want, len(want))
	}
}

func (e *testEnd) checkBroken() {
	e.t.Helper()
	if _, used, err := e.Conn.ReadInPlace(&e.out, []byte{typeApplicationData}); err != ErrBroken || used != 0 {
		e.t.Errorf("Read after the failure: used %d, %v; want %v", used, err, ErrBroken)
	}
	if err := e.Conn.Write(&e.out, []byte("x")); err != ErrBroken {
		e.t.Errorf("Write after the failure: %v, want %v", err, ErrBroken)
	}
	if err := e.CloseWrite(&e.out); err != ErrBroken || len(e.out) > 0 {
		e.t.Errorf("CloseWrite after the failure: %v, want %v; %d bytes of output", err, ErrBroken, len(e.out))
	}
}

// alertOf returns the alert of an error, or -1 if it has none with this operation.
func alertOf(err error, op string) int {
	var opErr *net.OpError
	var alert tls.AlertError
	if !errors.As(err, &opErr) || opErr.Op != op || !errors.As(err, &alert) {
		return -1
	}
	return int(alert)
}

func concat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func (e *testEnd) keepsPartial() bool { return e.HasPartialRecord() || e.PartialRecordMemory() > 0 }
