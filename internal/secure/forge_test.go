package secure

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"strings"
	"testing"
)

// A forger produces records that crypto/tls has no calls for. It knows the secrets from a KeyLogWriter.
type forger struct {
	t      *testing.T
	hash   func() hash.Hash
	keyLen int
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

func secretFromKeyLog(t *testing.T, log, label string) []byte {
	t.Helper()
	for line := range strings.Lines(log) {
		if f := strings.Fields(line); f[0] == label {
			b, err := hex.DecodeString(f[2])
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	t.Fatalf("no %s in the key log", label)
	return nil
}

// newForger returns a forger of TLS 1.3 records with the traffic secret, starting at sequence 0.
func newForger(t *testing.T, suite uint16, secret []byte) *forger {
	f := &forger{t: t, secret: secret, hash: sha256.New, keyLen: 16}
	switch suite {
	case tls.TLS_AES_128_GCM_SHA256:
	case tls.TLS_AES_256_GCM_SHA384:
		f.hash, f.keyLen = sha512.New384, 32
	default:
		t.Skipf("the suite is %s; the forger knows AES", tls.CipherSuiteName(suite))
	}
	f.deriveKeys()
	return f
}

// expandLabel is HKDF-Expand-Label of RFC 8446.
func (f *forger) expandLabel(label string, n int) []byte {
	info := binary.BigEndian.AppendUint16(nil, uint16(n))
	info = append(info, byte(len("tls13 ")+len(label)))
	info = append(info, "tls13 "+label...)
	info = append(info, 0)
	key, err := hkdf.Expand(f.hash, f.secret, string(info), n)
	if err != nil {
		f.t.Fatal(err)
	}
	return key
}

func (f *forger) deriveKeys() {
	f.aead, f.iv, f.seq = newGCM(f.t, f.expandLabel("key", f.keyLen)), f.expandLabel("iv", 12), 0
}

func newGCM(t *testing.T, key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	return aead
}

// updateKey switches to the next traffic secret.
func (f *forger) updateKey() {
	f.secret = f.expandLabel("traffic upd", f.hash().Size())
	f.deriveKeys()
}

func (f *forger) sealRecord(kind byte, content []byte) []byte {
	inner := append(bytes.Clone(content), kind)
	head := []byte{23, 3, 3}
	head = binary.BigEndian.AppendUint16(head, uint16(len(inner)+f.aead.Overhead()))
	return f.aead.Seal(head, f.nonce(), inner, head)
}

func (f *forger) openRecord(record []byte) (kind byte, content []byte) {
	f.t.Helper()
	inner, err := f.aead.Open(nil, f.nonce(), record[headerLen:], record[:headerLen])
	if err != nil {
		f.t.Fatalf("record %d: %v", f.seq, err)
	}
	inner = bytes.TrimRight(inner, "\x00")
	return inner[len(inner)-1], inner[:len(inner)-1]
}

func (f *forger) nonce() []byte {
	n := bytes.Clone(f.iv)
	var seq [8]byte
	binary.BigEndian.PutUint64(seq[:], f.seq)
	for i, b := range seq {
		n[4+i] ^= b
	}
	f.seq++
	return n
}

// newServerWithForgers returns an open server session and forgers for both directions.
func newServerWithForgers(t *testing.T) (server *testPeer, in, out *forger) {
	var log bytes.Buffer
	serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
	serverCfg.KeyLogWriter = &log
	serverCfg.SessionTicketsDisabled = true // so that the sequence starts at 0
	server, _, p := newOpenPair(t, serverCfg, clientCfg)
	for p.moveOnce() {
	}
	suite := server.session.State().CipherSuite
	return server, newForger(t, suite, secretFromKeyLog(t, log.String(), "CLIENT_TRAFFIC_SECRET_0")),
		newForger(t, suite, secretFromKeyLog(t, log.String(), "SERVER_TRAFFIC_SECRET_0"))
}

// TestKeyUpdate updates the client's key and requests an update of the server's, with the message in one
// and in two records, in pieces of several sizes.
func TestKeyUpdate(t *testing.T) {
	for _, cut := range []int{5, 2} {
		for _, piece := range []int{1, 1000} {
			server, in, out := newServerWithForgers(t)
			message := []byte{24, 0, 0, 1, 1}
			wire := in.sealRecord(23, []byte("before "))
			wire = append(wire, in.sealRecord(22, message[:cut])...)
			if cut < len(message) {
				wire = append(wire, in.sealRecord(22, message[cut:])...)
			}
			in.updateKey()
			wire = append(wire, in.sealRecord(23, []byte("after"))...)
			for len(wire) > 0 {
				n := min(piece, len(wire))
				server.receiveCiphertext(wire[:n])
				wire = wire[n:]
			}
			if string(server.got) != "before after" || server.err != nil {
				t.Fatalf("got %q and %v", server.got, server.err)
			}
			kind, content := out.openRecord(server.takeOutput())
			if kind != 22 || !bytes.Equal(content, []byte{24, 0, 0, 1, 0}) {
				t.Errorf("the answer is type %d, %x; want a KeyUpdate", kind, content)
			}
			out.updateKey()
			server.writePlaintext([]byte("new key"))
			if _, content := out.openRecord(server.takeOutput()); string(content) != "new key" {
				t.Errorf("sealed with the new key: %q", content)
			}
		}
	}
}
