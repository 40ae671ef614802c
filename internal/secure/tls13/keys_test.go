package tls13

import (
	"bytes"
	"crypto/tls"
	"encoding/hex"
	"io"
	"strings"
	"testing"
)

func fromHex(s string) []byte {
	p, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return p
}

// The secrets and records of RFC 8448, section 3: the application data of a simple 1-RTT handshake.
var (
	rfcClientSecret = fromHex("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5")
	rfcServerSecret = fromHex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643")
	rfcTicket       = fromHex(`17030300de 3a6b8f90414a97d6959c3487680de5134a2b240e6cffac116e95d41d6af8f6b580dcf3d11d63c758db28
		9a015940252f55713e061dc13e078891a38efbcf5753ad8ef170ad3c7353d16d9da773b9ca7f2b9fa1b6c0d4a3d03f75e09c30ba1e62972a
		c46f75f7b981be63439b2999ce13064615139891d5e4c5b406f16e3fc181a77ca475840025db2f0a77f81b5ab05b94c01346755f69232c86
		519d86cbeeac87aac347d143f9605d64f650db4d023e70e952ca49fe5137121c74bc2697687e248746d6df353005f3bce18696129c815355
		6b3b6c6779b37bf15985684f`)
	rfcClientData = fromHex(`1703030043 a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20
		441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4`)
	rfcServerData = fromHex(`1703030043 2e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb50
		1a59a8fcc49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d`)
	rfcClientClose = fromHex("1703030013 c9872760655666b74d7ff1153efd6db6d0b0e3")
	rfcServerClose = fromHex("1703030013 b58fd67166ebf599d24720cfbe7efa7a8864a9")
)

// TestKeySchedule checks keys and records with the values of RFC 8448, section 3.
func TestKeySchedule(t *testing.T) {
	for name, c := range map[string]struct{ secret, key, iv []byte }{
		"client": {rfcClientSecret, fromHex("17422dda596ed5d9acd890e3c63f5051"), fromHex("5b78923dee08579033e523d9")},
		"server": {rfcServerSecret, fromHex("9f02283b6c9c07efc26bb9f2ac92e356"), fromHex("cf782b88dd83549aadf1e984")},
	} {
		if key := aes128GCMSHA256.expandLabel(c.secret, "key", 16); !bytes.Equal(key, c.key) {
			t.Errorf("key of the %s: %x, want %x", name, key, c.key)
		}
		if iv := aes128GCMSHA256.newCipher(c.secret).iv; !bytes.Equal(iv[:], c.iv) {
			t.Errorf("iv of the %s: %x, want %x", name, iv, c.iv)
		}
	}
	cache := new(CipherCache)
	defer cache.Close()
	data := make([]byte, 50)
	for i := range data {
		data[i] = byte(i)
	}
	sentRecords := CountRecordsEncryptedWith(tls.TLS_AES_128_GCM_SHA256, rfcServerSecret, rfcTicket, 0)
	server, client := newTestPairOf(t, aes128GCMSHA256, rfcClientSecret, rfcServerSecret, cache)
	server.write.sequence = uint64(sentRecords)
	for name, c := range map[string]struct {
		from, to          *testEnd
		ticket, want, end []byte
	}{
		"client": {client, server, nil, rfcClientData, rfcClientClose},
		"server": {server, client, rfcTicket, rfcServerData, rfcServerClose},
	} {
		if got := c.from.writePlaintext(string(data)); !bytes.Equal(got, c.want) {
			t.Errorf("record of the %s:\n%x, want\n%x", name, got, c.want)
		}
		_ = c.from.CloseWrite(&c.from.out)
		if got := c.from.takeOutput(); !bytes.Equal(got, c.end) {
			t.Errorf("close_notify of the %s:\n%x, want\n%x", name, got, c.end)
		}
		c.to.receive(concat(c.ticket, c.want, c.end))
		if c.to.checkGot(string(data)); c.to.err != io.EOF {
			t.Errorf("the peer of the %s: %v, want EOF", name, c.to.err)
		}
	}
}

// TestCountRecordsEncryptedWith counts the records of one secret among others.
func TestCountRecordsEncryptedWith(t *testing.T) {
	server, _ := newTestPair(t, tls.TLS_AES_256_GCM_SHA384)
	_, other := newTestPair(t, tls.TLS_AES_256_GCM_SHA384)
	secret := server.appendSecret(nil, &server.write)
	changeCipherSpec := []byte{20, 3, 3, 0, 1, 1}
	first := concat(changeCipherSpec, other.writePlaintext("finished"), server.writePlaintext("ticket"), server.writePlaintext(""), server.writePlaintext("ticket"))
	second := concat(other.writePlaintext("other"), server.writePlaintext("ticket"))
	for _, c := range []struct {
		sent         []byte
		before, want int
	}{{nil, 0, 0}, {first, 0, 2}, {second, 2, 1}, {second, 0, 0}, {second[:len(second)-1], 2, 0}, {first[:3], 0, 0}} {
		if n := CountRecordsEncryptedWith(tls.TLS_AES_256_GCM_SHA384, secret, c.sent, c.before); n != c.want {
			t.Errorf("%d records in %d bytes after %d, want %d", n, len(c.sent), c.before, c.want)
		}
	}
	if n := CountRecordsEncryptedWith(tls.TLS_CHACHA20_POLY1305_SHA256, make([]byte, 32), rfcTicket, 0); n != 0 {
		t.Errorf("%d records of another cipher suite, want 0", n)
	}
}

func TestNewConn(t *testing.T) {
	cache := new(CipherCache)
	for _, c := range []struct {
		suite       uint16
		read, write int
		want        string // of the error
	}{
		{tls.TLS_AES_128_GCM_SHA256, 32, 32, ""},
		{tls.TLS_AES_256_GCM_SHA384, 48, 48, ""},
		{tls.TLS_AES_128_GCM_SHA256, 32, 48, "secrets of 32 and 48 bytes; expected 32"},
		{tls.TLS_AES_256_GCM_SHA384, 0, 48, "secrets of 0 and 48 bytes; expected 48"},
		{tls.TLS_CHACHA20_POLY1305_SHA256, 32, 32, "TLS_CHACHA20_POLY1305_SHA256"},
	} {
		conn, err := NewConn(c.suite, true, make([]byte, c.read), make([]byte, c.write), 7, cache)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%x, %d, %d: %v, want %q", c.suite, c.read, c.write, err, c.want)
			}
		} else if err != nil || conn.CipherSuite() != c.suite || !conn.IsClient() || conn.write.sequence != 7 {
			t.Errorf("%x: %v; %+v", c.suite, err, conn)
		}
		if got, want := IsSupported(c.suite), c.suite != tls.TLS_CHACHA20_POLY1305_SHA256; got != want {
			t.Errorf("IsSupported(%x) = %v", c.suite, got)
		}
	}
}
