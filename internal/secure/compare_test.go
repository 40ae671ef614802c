package secure

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/secure/tls13"
	"github.com/myriad-go/myriad/internal/testkit"
)

// FuzzAgainstCryptoTLS makes a handshake and then sends the same records to the server's crypto/tls and to a tls13.Conn
// with the same secrets. The two must deliver the same plaintext, end in the same way and send the same records. If the
// script has sent arbitrary bytes, one of the two may end earlier: tls13.TestViolations checks what RFC 8446 requires,
// which crypto/tls does not always do. pieces determines the sizes in which the tls13.Conn receives the records.
func FuzzAgainstCryptoTLS(f *testing.F) {
	pieces := [][]byte{nil, {0}, {2, 30, 0, 100}}
	for i, script := range seedScripts() {
		f.Add(pieces[i%len(pieces)], script)
	}
	f.Fuzz(func(t *testing.T, pieces, script []byte) {
		s, secrets, want := runReference(t, script)
		got := runCompact(t, s, secrets, pieces)
		switch {
		case got.isEqual(want):
		case s.hasArbitraryBytes && (got.isPrefixOf(want) || want.isPrefixOf(got)):
		default:
			t.Errorf("crypto/tls: %v\ntls13:      %v\n%s", want, got, strings.Join(s.names, "; "))
		}
	})
}

// outcome is what one implementation has made of a stream.
type outcome struct {
	plaintext []byte
	sent      [][]byte // inner plaintexts, up to close_notify or an alert
	end       string   // "open", "failed" or the error
}

func (o *outcome) isEqual(other *outcome) bool {
	return o.end == other.end && bytes.Equal(o.plaintext, other.plaintext) &&
		slices.EqualFunc(o.sent, other.sent, bytes.Equal)
}

func (o *outcome) String() string {
	return fmt.Sprintf("%s, plaintext of %d bytes, sent %.40x", o.end, len(o.plaintext), o.sent)
}

// isPrefixOf reports whether o has failed and other has delivered and sent the same and perhaps more, apart from the
// final alert of o.
func (o *outcome) isPrefixOf(other *outcome) bool {
	sent := o.sent
	if n := len(sent); n > 0 && len(sent[n-1]) == 3 && sent[n-1][0] == 2 && sent[n-1][2] == contentAlert {
		sent = sent[:n-1]
	}
	return o.end == "failed" && bytes.HasPrefix(other.plaintext, o.plaintext) && len(sent) <= len(other.sent) &&
		slices.EqualFunc(sent, other.sent[:len(sent)], bytes.Equal)
}

func (o *outcome) setEnd(err error) {
	var opErr *net.OpError
	if o.end = "failed"; errors.Is(err, io.EOF) || errors.As(err, &opErr) && opErr.Op == "remote error" {
		o.end = err.Error()
	}
}

// setSent decrypts the records that the server has sent.
func (o *outcome) setSent(t *testing.T, records, secret []byte) {
	t.Helper()
	key := newTrafficKey(secret)
	for len(records) > 0 {
		n := 5 + int(binary.BigEndian.Uint16(records[3:]))
		inner, err := key.aead.Open(nil, key.nextNonce(), records[5:n], records[:5])
		if err != nil {
			t.Fatalf("the server's record %d: %v", len(o.sent), err)
		}
		o.sent, records = append(o.sent, inner), records[n:]
		if bytes.Equal(inner, []byte{messageKeyUpdate, 0, 0, 1, 0, contentHandshake}) {
			key.update()
		}
	}
	// crypto/tls sends alerts and answers KeyUpdate after close_notify, which only the write deadline prevents that it
	// sets for the net.Conn.
	isCloseNotify := func(inner []byte) bool { return bytes.Equal(inner, []byte{1, 0, contentAlert}) }
	if i := slices.IndexFunc(o.sent, isCloseNotify); i >= 0 {
		o.sent = o.sent[:i+1]
	}
}

// endpoint is what scriptedStream.run needs of one implementation.
type endpoint struct {
	read  func(ciphertext []byte) (plaintext []byte, used int, err error)
	write func(p []byte) error
	close func() error
	move  func()
}

// run passes the stream to an endpoint, in pieces if there are any.
func (s *scriptedStream) run(e endpoint, pieces []byte) *outcome {
	o := &outcome{end: "open"}
	for _, step := range s.steps {
		for input := step.input; len(input) > 0 && o.end == "open"; {
			n := len(input)
			if len(pieces) > 0 {
				n = min(n, int(pieces[0])*int(pieces[0])+1)
				pieces = append(pieces[1:], pieces[0])
			}
			piece := slices.Clone(input[:n]) // Read decrypts in place
			input = input[n:]
			for o.end == "open" {
				plaintext, used, err := e.read(piece)
				o.plaintext = append(o.plaintext, plaintext...)
				if piece = piece[used:]; errors.Is(err, ErrAgain) || errors.Is(err, tls13.ErrAgain) {
					break
				} else if err != nil {
					o.setEnd(err)
				}
			}
		}
		// A remote alert ends crypto/tls only for reading.
		if canWrite := o.end == "open" || o.end == io.EOF.Error(); canWrite && step.event != nil {
			step.event(e)
		}
	}
	return o
}

// runReference performs a handshake, and then passes the stream that script describes to crypto/tls.
func runReference(t *testing.T, script []byte) (*scriptedStream, *trafficSecrets, *outcome) {
	serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
	secrets := new(trafficSecrets)
	serverCfg.KeyLogWriter, serverCfg.SessionTicketsDisabled = secrets, true
	serverCfg.CurvePreferences = []tls.CurveID{tls.CurveP256} // the fastest
	clientCfg.CurvePreferences = serverCfg.CurvePreferences
	server, _, _ := newOpenPair(t, serverCfg, clientCfg)
	server.out = nil
	s := newScriptedStream(secrets.client, script)
	o := s.run(endpoint{
		read: func(ciphertext []byte) (plaintext []byte, used int, err error) {
			n, used, err := server.session.Read(server.buf, ciphertext)
			return server.buf[:n], used, err
		},
		write: server.session.Write,
		close: server.session.CloseWrite,
		move:  func() {},
	}, nil)
	o.setSent(t, server.out, secrets.server)
	return s, secrets, o
}

type compactOutput []byte

func (o *compactOutput) AppendSpace(n int) []byte {
	*o = append(*o, make([]byte, n)...)
	return (*o)[len(*o)-n:]
}

var compareCache tls13.CipherCache

func runCompact(t *testing.T, s *scriptedStream, secrets *trafficSecrets, pieces []byte) *outcome {
	conn, err := tls13.NewConn(tls.TLS_AES_128_GCM_SHA256, false, secrets.client, secrets.server, 0, &compareCache)
	testkit.RequireNoError(t, err)
	defer func() { conn.Close() }()
	var out compactOutput
	o := s.run(endpoint{
		read: func(ciphertext []byte) (plaintext []byte, used int, err error) {
			return conn.ReadInPlace(&out, ciphertext)
		},
		write: func(p []byte) error { return conn.Write(&out, p) },
		close: func() error { return conn.CloseWrite(&out) },
		move: func() {
			conn, err = tls13.RestoreConn(conn.AppendState(nil), &compareCache)
			testkit.RequireNoError(t, err)
		},
	}, slices.Clone(pieces))
	o.setSent(t, out, secrets.server)
	return o
}

// Types of RFC 8446, sections 4 and 5.1.
const (
	contentAlert           = 21
	contentHandshake       = 22
	contentApplicationData = 23
	messageKeyUpdate       = 24
)

// trafficKey encrypts or decrypts the records of one direction with TLS_AES_128_GCM_SHA256. It shares no code with
// package tls13.
type trafficKey struct {
	secret   []byte
	aead     cipher.AEAD
	iv       []byte
	sequence uint64
}

func newTrafficKey(secret []byte) *trafficKey {
	k := &trafficKey{secret: secret}
	block, err := aes.NewCipher(k.expand("key", 16))
	if err != nil {
		panic(err)
	}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		panic(err)
	}
	k.iv = k.expand("iv", 12)
	return k
}

func (k *trafficKey) expand(label string, n int) []byte {
	info := fmt.Sprintf("\x00%c%ctls13 %s\x00", n, len("tls13 ")+len(label), label)
	p, err := hkdf.Expand(sha256.New, k.secret, info, n)
	if err != nil {
		panic(err)
	}
	return p
}

func (k *trafficKey) update() { *k = *newTrafficKey(k.expand("traffic upd", 32)) }

func (k *trafficKey) nextNonce() []byte {
	nonce := bytes.Clone(k.iv)
	for i := range 8 {
		nonce[4+i] ^= byte(k.sequence >> (56 - 8*i))
	}
	k.sequence++
	return nonce
}

// scriptedStream is what a client sends, and what happens meanwhile.
type scriptedStream struct {
	steps             []scriptedStep
	names             []string // of the operations
	hasArbitraryBytes bool
	key               *trafficKey
}

// scriptedStep is a part of the stream, and an action of the server after it.
type scriptedStep struct {
	input []byte
	event func(endpoint)
}

// Limits of a stream.
const (
	maxOperations  = 100
	maxStreamBytes = 300_000
	maxIdle        = 15 // messages without data; the implementations have different limits above
)

// newScriptedStream interprets a script as operations.
func newScriptedStream(clientSecret, script []byte) *scriptedStream {
	s := &scriptedStream{key: newTrafficKey(clientSecret), steps: make([]scriptedStep, 1)}
	size := 0
	for i := 1; i <= maxOperations && len(script) > 0 && size < maxStreamBytes; i++ {
		op := operations[int(script[0])%len(operations)]
		args := script[1:]
		before := args
		op.run(s, &args)
		s.names = append(s.names, fmt.Sprintf("%s %x", op.name, before[:len(before)-len(args)]))
		script = args
		if i%maxIdle == 0 {
			s.sealContent(contentApplicationData, 'x')
		}
		size += len(s.last().input)
	}
	return s
}

func (s *scriptedStream) last() *scriptedStep { return &s.steps[len(s.steps)-1] }

func (s *scriptedStream) seal(inner []byte) {
	header := []byte{contentApplicationData, 3, 3}
	header = binary.BigEndian.AppendUint16(header, uint16(len(inner)+s.key.aead.Overhead()))
	record := append(header, s.key.aead.Seal(nil, s.key.nextNonce(), inner, header)...)
	s.last().input = append(s.last().input, record...)
}

func (s *scriptedStream) sealContent(contentType byte, content ...byte) {
	s.seal(append(bytes.Clone(content), contentType))
}

func (s *scriptedStream) addEvent(event func(endpoint)) {
	s.last().event = event
	s.steps = append(s.steps, scriptedStep{})
}

// arguments are the bytes of a script that follow an operation. A missing byte is 0.
type arguments = *[]byte

func nextByte(args arguments) byte {
	if len(*args) == 0 {
		return 0
	}
	b := (*args)[0]
	*args = (*args)[1:]
	return b
}

func nextUint16(args arguments) int { return int(nextByte(args))<<8 | int(nextByte(args)) }

// nextBytes returns up to 40 bytes, of which the first gives the number.
func nextBytes(args arguments) []byte {
	n := min(int(nextByte(args))%41, len(*args))
	p := (*args)[:n]
	*args = (*args)[n:]
	return p
}

// The numbers of operations, which are their indexes in operations.
const (
	opData = iota
	opPadded
	opKeyUpdate
	opKeyUpdateOnly
	opNewKeyOnly
	opAlert
	opInnerLen
	opCorrupt
	opAnyInner
	opAnyBytes
	opServerWrite
	opServerClose
	opServerMove
)

var operations = [...]struct {
	name string
	run  func(s *scriptedStream, args arguments)
}{
	opData: {"data", func(s *scriptedStream, args arguments) {
		s.sealContent(contentApplicationData, bytes.Repeat([]byte{byte(len(s.names))}, nextUint16(args)%(16<<10+1))...)
	}},
	opPadded: {"padded", func(s *scriptedStream, args arguments) {
		content, padding := nextBytes(args), nextUint16(args)%(16<<10)
		s.seal(append(append(bytes.Clone(content), contentApplicationData), make([]byte, padding)...))
	}},
	opKeyUpdate: {"KeyUpdate", func(s *scriptedStream, args arguments) {
		message := []byte{messageKeyUpdate, 0, 0, 1, nextByte(args) % 2}
		if cut := nextByte(args) % 5; cut > 0 {
			s.sealContent(contentHandshake, message[:cut]...)
			message = message[cut:]
		}
		s.sealContent(contentHandshake, message...)
		s.key.update()
	}},
	opKeyUpdateOnly: {"KeyUpdate without a new key", func(s *scriptedStream, args arguments) {
		s.sealContent(contentHandshake, messageKeyUpdate, 0, 0, 1, nextByte(args)%2)
	}},
	opNewKeyOnly: {"new key without KeyUpdate", func(s *scriptedStream, args arguments) { s.key.update() }},
	opAlert: {"alert", func(s *scriptedStream, args arguments) {
		s.sealContent(contentAlert, nextByte(args), nextByte(args))
	}},
	opInnerLen: {"length of inner plaintext", func(s *scriptedStream, args arguments) {
		lastByte := []byte{contentApplicationData, 0, 99}[nextByte(args)%3] // 0 for padding only
		s.seal(append(make([]byte, nextUint16(args)%(16<<10+300)), lastByte))
	}},
	opCorrupt: {"corrupt", func(s *scriptedStream, args arguments) {
		start := len(s.last().input) + 5
		s.sealContent(contentApplicationData, nextBytes(args)...)
		body := s.last().input[start:]
		body[nextUint16(args)%len(body)] ^= 1 << (nextByte(args) % 8)
	}},
	opAnyInner: {"any inner plaintext", func(s *scriptedStream, args arguments) {
		s.hasArbitraryBytes = true
		s.seal(nextBytes(args))
	}},
	opAnyBytes: {"any bytes", func(s *scriptedStream, args arguments) {
		s.hasArbitraryBytes = true
		s.last().input = append(s.last().input, nextBytes(args)...)
	}},
	opServerWrite: {"server: write", func(s *scriptedStream, args arguments) {
		n := nextUint16(args)
		s.addEvent(func(e endpoint) { _ = e.write(make([]byte, n)) }) // fails after CloseWrite
	}},
	opServerClose: {"server: close", func(s *scriptedStream, _ arguments) {
		s.addEvent(func(e endpoint) { _ = e.close() })
	}},
	opServerMove: {"server: move", func(s *scriptedStream, _ arguments) { s.addEvent(func(e endpoint) { e.move() }) }},
}

// seedScripts returns scripts with all operations.
func seedScripts() [][]byte {
	before, after := []byte{opData, 0, 10}, []byte{opData, 0, 20, opServerWrite, 0, 5}
	var scripts [][]byte
	add := func(script ...byte) { scripts = append(scripts, bytes.Join([][]byte{before, script, after}, nil)) }
	add(opData, 0x40, 0, opServerWrite, 0xff, 0xff)
	add(opPadded, 3, 1, 2, 3, 1, 0, opPadded, 0, 0, 0)
	for request := range byte(2) {
		for cut := range byte(5) {
			add(opKeyUpdate, request, cut)
		}
		add(opKeyUpdateOnly, request)
		add(opServerClose, opKeyUpdate, request, 0)
		add(opKeyUpdate, request, 0, opServerMove, opKeyUpdate, request, 1, opServerWrite, 1, 0)
	}
	add(opNewKeyOnly)
	for _, alert := range []byte{0, 10, 90, 255} {
		add(opAlert, 1, alert)
		add(opAlert, 2, alert)
	}
	add(opServerClose, opAlert, 1, 0)
	add(opServerClose, opCorrupt, 1, 1, 0, 0, 0)
	for _, n := range []uint16{0, 15, 16 << 10, 16<<10 + 1, 16<<10 + 238, 16<<10 + 239, 16<<10 + 240} {
		for lastByte := range byte(3) {
			add(opInnerLen, lastByte, byte(n>>8), byte(n))
		}
	}
	add(opCorrupt, 5, 1, 2, 3, 4, 5, 0, 3, 3)
	add(opCorrupt, 0, 0, 16, 0)
	add(opAnyInner, 7, messageKeyUpdate, 0, 0, 1, 0, 0, contentHandshake)
	add(opAnyInner, 3, messageKeyUpdate, 0, contentHandshake, opAlert, 2, 40)
	add(opAnyInner, 5, 11, 5, 0, 0, contentHandshake)
	add(opAnyBytes, 6, 20, 3, 3, 0, 1, 1)
	add(opAnyBytes, 3, contentApplicationData, 3, 3)
	add(bytes.Repeat([]byte{opPadded, 0, 0, 0}, maxOperations)...)
	return scripts
}
