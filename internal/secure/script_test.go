package secure

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
)

// Types of RFC 8446, sections 4 and 5.1.
const (
	contentChangeCipherSpec = 20
	contentAlert            = 21
	contentHandshake        = 22
	contentApplicationData  = 23
	messageKeyUpdate        = 24
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

func (k *trafficKey) seal(outerType byte, version uint16, inner []byte) []byte {
	header := binary.BigEndian.AppendUint16([]byte{outerType}, version)
	header = binary.BigEndian.AppendUint16(header, uint16(len(inner)+k.aead.Overhead()))
	return append(header, k.aead.Seal(nil, k.nextNonce(), inner, header)...)
}

func (k *trafficKey) open(record []byte) (inner []byte, err error) {
	return k.aead.Open(nil, k.nextNonce(), record[5:], record[:5])
}

// cutRecord returns the first record, which may be incomplete.
func cutRecord(p []byte) (record, rest []byte) {
	if len(p) < 5 {
		return p, nil
	}
	n := min(5+int(binary.BigEndian.Uint16(p[3:])), len(p))
	return p[:n], p[n:]
}

// scriptedStream is what a client sends, and what happens meanwhile.
type scriptedStream struct {
	bytes   []byte
	records []scriptedRecord
	inner   map[int][]byte  // by the offset of a record that the script has sealed
	events  map[int][]event // by offset
	names   []string        // of the operations
	key     *trafficKey
}

// scriptedRecord is a part of the stream that is a record, or would be complete with more bytes.
type scriptedRecord struct {
	start, end int
	events     []event // after it
}

// An event is an action of the server.
type event struct {
	write           int // bytes
	isClose, isMove bool
}

const (
	maxOperations  = 100
	maxStreamBytes = 300_000
)

// newScriptedStream interprets a script as operations.
func newScriptedStream(clientSecret, script []byte) *scriptedStream {
	s := &scriptedStream{inner: make(map[int][]byte), events: make(map[int][]event), key: newTrafficKey(clientSecret)}
	for range maxOperations {
		if len(script) == 0 || len(s.bytes) > maxStreamBytes {
			break
		}
		op := operations[int(script[0])%len(operations)]
		args := script[1:]
		before := args
		op.run(s, &args)
		s.names = append(s.names, fmt.Sprintf("%s %x", op.name, before[:len(before)-len(args)]))
		script = args
	}
	s.cutRecords()
	return s
}

// cutRecords sets records. An event happens after the record that contains its offset.
func (s *scriptedStream) cutRecords() {
	for rest := s.bytes; len(rest) > 0; {
		start := len(s.bytes) - len(rest)
		_, rest = cutRecord(rest)
		r := scriptedRecord{start: start, end: len(s.bytes) - len(rest)}
		for offset := start + 1; offset <= r.end; offset++ {
			r.events = append(r.events, s.events[offset]...)
		}
		s.records = append(s.records, r)
	}
}

func (s *scriptedStream) String() string { return strings.Join(s.names, "; ") }

func (s *scriptedStream) seal(inner []byte) { s.sealAs(contentApplicationData, 0x0303, inner) }

func (s *scriptedStream) sealAs(outerType byte, version uint16, inner []byte) {
	s.inner[len(s.bytes)] = inner
	s.bytes = append(s.bytes, s.key.seal(outerType, version, inner)...)
}

func (s *scriptedStream) sealContent(contentType byte, content ...byte) {
	s.seal(append(bytes.Clone(content), contentType))
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

type operation struct {
	name string
	run  func(s *scriptedStream, args arguments)
}

// The numbers of operations, which are their indexes in operations.
const (
	opData = iota
	opPadded
	opEmpty
	opKeyUpdate
	opFragmentedKeyUpdate
	opKeyUpdateOnly
	opNewKeyOnly
	opHandshake
	opLongHandshake
	opAlert
	opAlertBytes
	opCloseNotify
	opContent
	opInnerLen
	opCorrupt
	opOuterType
	opVersion
	opHeader
	opRaw
	opManyIdle
	opServerWrite
	opServerClose
	opServerMove
)

var operations = [...]operation{
	opData: {"data", func(s *scriptedStream, args arguments) {
		s.sealContent(contentApplicationData, bytes.Repeat([]byte{byte(len(s.names))}, nextUint16(args)%(16<<10+1))...)
	}},
	opPadded: {"padded", func(s *scriptedStream, args arguments) {
		content, padding := nextBytes(args), nextUint16(args)%(16<<10)
		s.seal(append(append(bytes.Clone(content), contentApplicationData), make([]byte, padding)...))
	}},
	opEmpty: {"empty", func(s *scriptedStream, args arguments) { s.sealContent(contentApplicationData) }},
	opKeyUpdate: {"KeyUpdate", func(s *scriptedStream, args arguments) {
		s.sealContent(contentHandshake, messageKeyUpdate, 0, 0, 1, nextByte(args)%4)
		s.key.update()
	}},
	opFragmentedKeyUpdate: {"fragmented KeyUpdate", func(s *scriptedStream, args arguments) {
		message := []byte{messageKeyUpdate, 0, 0, 1, nextByte(args) % 4}
		cut := 1 + int(nextByte(args)%4)
		s.sealContent(contentHandshake, message[:cut]...)
		s.sealContent(contentHandshake, message[cut:]...)
		s.key.update()
	}},
	opKeyUpdateOnly: {"KeyUpdate without a new key", func(s *scriptedStream, args arguments) {
		s.sealContent(contentHandshake, messageKeyUpdate, 0, 0, 1, nextByte(args)%4)
	}},
	opNewKeyOnly: {"new key without KeyUpdate", func(s *scriptedStream, args arguments) { s.key.update() }},
	opHandshake: {"handshake", func(s *scriptedStream, args arguments) {
		s.sealContent(contentHandshake, nextBytes(args)...)
	}},
	opLongHandshake: {"long handshake", func(s *scriptedStream, args arguments) {
		s.sealContent(contentHandshake, append(bytes.Clone(nextBytes(args)), make([]byte, nextUint16(args)%16_000)...)...)
	}},
	opAlert: {"alert", func(s *scriptedStream, args arguments) {
		s.sealContent(contentAlert, nextByte(args), nextByte(args))
	}},
	opAlertBytes: {"alert bytes", func(s *scriptedStream, args arguments) {
		s.sealContent(contentAlert, nextBytes(args)...)
	}},
	opCloseNotify: {"close_notify", func(s *scriptedStream, args arguments) { s.sealContent(contentAlert, 1, 0) }},
	opContent: {"content", func(s *scriptedStream, args arguments) {
		s.sealContent(nextByte(args), nextBytes(args)...)
	}},
	opInnerLen: {"length of inner plaintext", func(s *scriptedStream, args arguments) {
		contentType := nextByte(args)
		inner := make([]byte, nextUint16(args)%(16<<10+300))
		if len(inner) > 0 {
			inner[len(inner)-1] = contentType // 0 for padding only
		}
		s.seal(inner)
	}},
	opCorrupt: {"corrupt", func(s *scriptedStream, args arguments) {
		start := len(s.bytes)
		s.sealContent(contentApplicationData, nextBytes(args)...)
		delete(s.inner, start)
		s.bytes[start+5+nextUint16(args)%(len(s.bytes)-start-5)] ^= 1 << (nextByte(args) % 8)
	}},
	opOuterType: {"outer type", func(s *scriptedStream, args arguments) {
		s.sealAs(nextByte(args), 0x0303, append(bytes.Clone(nextBytes(args)), contentApplicationData))
	}},
	opVersion: {"version", func(s *scriptedStream, args arguments) {
		s.sealAs(contentApplicationData, uint16(nextUint16(args)), append(bytes.Clone(nextBytes(args)), contentApplicationData))
	}},
	opHeader: {"header", func(s *scriptedStream, args arguments) {
		s.bytes = append(s.bytes, nextByte(args), 3, 3, nextByte(args), nextByte(args))
		s.bytes = append(s.bytes, make([]byte, nextUint16(args)%20_000)...)
	}},
	opRaw: {"raw", func(s *scriptedStream, args arguments) { s.bytes = append(s.bytes, nextBytes(args)...) }},
	opManyIdle: {"many idle", func(s *scriptedStream, args arguments) {
		for range nextByte(args) % 40 {
			switch nextByte(args) % 4 {
			case 0:
				s.sealContent(contentApplicationData)
			case 1:
				s.sealContent(contentAlert, 1, 90) // user_canceled
			case 2:
				s.sealContent(contentHandshake, messageKeyUpdate, 0, 0, 1, 0)
				s.key.update()
			case 3:
				s.sealContent(contentHandshake, messageKeyUpdate, 0)
				s.sealContent(contentHandshake, 0, 1, 1)
				s.key.update()
			}
		}
	}},
	opServerWrite: {"server: write", func(s *scriptedStream, args arguments) { s.addEvent(event{write: nextUint16(args)}) }},
	opServerClose: {"server: close", func(s *scriptedStream, args arguments) { s.addEvent(event{isClose: true}) }},
	opServerMove:  {"server: move", func(s *scriptedStream, args arguments) { s.addEvent(event{isMove: true}) }},
}

func (s *scriptedStream) addEvent(e event) {
	s.events[len(s.bytes)] = append(s.events[len(s.bytes)], e)
}

// position describes a record of the stream. All records before it are valid.
type position struct {
	outerType   byte
	version     uint16
	isComplete  bool
	inner       []byte // nil if the record is not one of application data that the script has sealed
	contentType byte   // 0 if inner is nil
	content     []byte // of a record that is not encrypted, if it is complete

	message                   []byte // a handshake message, which may have begun in a record before, and what follows
	idleRecords, idleMessages int    // without data, up to this record; messages are counted by type of their end
}

func (s *scriptedStream) positionAt(number int) *position {
	p := new(position)
	for i := range min(number+1, len(s.records)) {
		p.setRecord(s.bytes[s.records[i].start:s.records[i].end], s.inner[s.records[i].start])
	}
	return p
}

func (p *position) setRecord(record, inner []byte) {
	p.outerType, p.version, p.isComplete = record[0], 0, false
	if len(record) >= 5 {
		p.version = binary.BigEndian.Uint16(record[1:])
		p.isComplete = len(record) == 5+int(binary.BigEndian.Uint16(record[3:]))
	}
	p.inner, p.contentType, p.content = nil, 0, nil
	if p.isComplete && inner != nil && p.outerType == contentApplicationData {
		p.inner = inner
		if content := bytes.TrimRight(inner, "\x00"); len(content) > 0 {
			p.content, p.contentType = content[:len(content)-1], content[len(content)-1]
		}
	} else if p.isComplete {
		p.content = record[5:]
	}
	if p.isMessageComplete() { // it ended in a record before
		p.message = nil
	}
	switch {
	case p.contentType == contentApplicationData && len(p.content) > 0:
		p.idleRecords, p.idleMessages = 0, 0
		return
	case p.contentType == contentHandshake:
		p.message = append(p.message, p.content...)
		if p.isMessageComplete() {
			p.idleMessages++
		}
	default:
		p.idleMessages++
	}
	p.idleRecords++
}

func (p *position) isChangeCipherSpec() bool {
	return p.isComplete && len(p.content) <= 16<<10 && (p.outerType == contentChangeCipherSpec || p.contentType == contentChangeCipherSpec)
}

func (p *position) isKeyUpdate() bool { return p.isKeyUpdateHeader() && p.messageLen() == 1 }

func (p *position) isKeyUpdateHeader() bool {
	return p.contentType == contentHandshake && len(p.message) >= 4 && p.message[0] == messageKeyUpdate
}

func (p *position) isOtherMessage() bool {
	return p.contentType == contentHandshake && len(p.message) > 0 && p.message[0] != messageKeyUpdate
}

func (p *position) messageLen() int {
	return int(p.message[1])<<16 | int(p.message[2])<<8 | int(p.message[3])
}

func (p *position) isMessageComplete() bool {
	return len(p.message) >= 4 && len(p.message) >= 4+p.messageLen()
}

// seedScripts returns scripts with all operations and, for each known difference, one that leads to it.
func seedScripts() [][]byte {
	before, after := []byte{opData, 0, 10}, []byte{opData, 0, 20, opServerWrite, 0, 5}
	var scripts [][]byte
	add := func(script ...byte) { scripts = append(scripts, bytes.Join([][]byte{before, script, after}, nil)) }
	add()
	add(opData, 0x40, 0, opServerWrite, 0xff, 0xff)
	add(opPadded, 3, 1, 2, 3, 1, 0)
	add(opEmpty, opEmpty)
	for value := range byte(3) {
		add(opKeyUpdate, value)
		add(opFragmentedKeyUpdate, value, 1)
		add(opFragmentedKeyUpdate, value, 3)
		add(opKeyUpdateOnly, value)
		add(opServerClose, opKeyUpdate, value)
		add(opKeyUpdate, value, opServerMove, opKeyUpdate, value, opServerWrite, 1, 0)
		add(opHandshake, 6, messageKeyUpdate, 0, 0, 1, value, 0)
		add(opHandshake, 10, messageKeyUpdate, 0, 0, 1, value, messageKeyUpdate, 0, 0, 1, value)
		add(opHandshake, 2, messageKeyUpdate, 0, opHandshake, 4, 0, 1, value, messageKeyUpdate)
	}
	add(opNewKeyOnly)
	add(opHandshake, 0)
	add(opHandshake, 4, messageKeyUpdate, 0, 0, 0)
	add(opHandshake, 6, messageKeyUpdate, 0, 0, 2, 0, 0)
	add(opHandshake, 4, messageKeyUpdate, 0, 0, 2)
	add(opHandshake, 4, messageKeyUpdate, 0, 0, 3, opHandshake, 3, 0, 0, 0)
	add(opHandshake, 4, messageKeyUpdate, 1, 0, 1)
	add(opHandshake, 2, messageKeyUpdate, 0)
	add(opHandshake, 2, messageKeyUpdate, 0, opCloseNotify)
	add(opHandshake, 2, messageKeyUpdate, 0, opAlert, 2, 40)
	add(opHandshake, 2, messageKeyUpdate, 0, opAlert, 1, 90)
	add(opHandshake, 2, messageKeyUpdate, 0, opEmpty)
	add(opHandshake, 2, messageKeyUpdate, 0, opHandshake, 0)
	for _, message := range []byte{0, 1, 2, 4, 5, 8, 11, 13, 15, 20, 99} {
		add(opHandshake, 4, message, 0, 0, 0)
		add(opHandshake, 5, message, 0, 0, 1, 0)
		add(opHandshake, 1, message)
		add(opHandshake, 4, message, 5, 0, 0)
		add(opLongHandshake, 4, message, 0, 0x10, 0, 0x10, 0)
	}
	for _, alert := range []byte{0, 10, 40, 90, 255} {
		add(opAlert, 1, alert)
		add(opAlert, 2, alert)
	}
	add(opAlertBytes, 0)
	add(opAlertBytes, 1, 1)
	add(opAlertBytes, 3, 1, 0, 0)
	add(opCloseNotify)
	add(opServerClose, opCloseNotify)
	add(opServerClose, opCorrupt, 1, 1, 0, 0, 0)
	for _, contentType := range []byte{1, 20, 24, 255} {
		add(opContent, contentType, 2, 1, 1)
	}
	for _, n := range []uint16{0, 1, 16, 16<<10 - 1, 16 << 10, 16<<10 + 1, 16<<10 + 2, 16<<10 + 239, 16<<10 + 240, 16<<10 + 241} {
		add(opInnerLen, contentApplicationData, byte(n>>8), byte(n))
		add(opInnerLen, 0, byte(n>>8), byte(n))
	}
	add(opContent, contentChangeCipherSpec, 1, 1)
	add(opHeader, contentChangeCipherSpec, 0x40, 1, 0x40, 1)
	add(opHeader, contentChangeCipherSpec, 0x4d, 0x4d, 0x4d, 0x4d)
	add(opCorrupt, 5, 1, 2, 3, 4, 5, 0, 3, 3)
	add(opCorrupt, 0, 0, 16, 0)
	for _, outerType := range []byte{0, 20, contentAlert, contentHandshake, 24} {
		add(opOuterType, outerType, 1, 1)
		add(opHeader, outerType, 0, 1, 0, 1)
		add(opHeader, outerType, 0xff, 0, 0, 0)
	}
	add(opRaw, 6, 20, 3, 3, 0, 1, 1)
	add(opRaw, 6, 20, 3, 1, 0, 1, 1)
	add(opVersion, 3, 1, 1, 1)
	add(opVersion, 0, 0, 0)
	add(opHeader, contentApplicationData, 0, 0, 0, 0)
	add(opHeader, contentApplicationData, 0, 15, 0, 15)
	add(opHeader, contentApplicationData, 0x41, 0, 0x41, 0)
	add(opHeader, contentApplicationData, 0x41, 1, 0x41, 1)
	add(opRaw, 3, contentApplicationData, 3, 3)
	for kind := range byte(4) {
		for _, n := range []byte{15, 16, 17} {
			idle := append([]byte{opManyIdle, n}, bytes.Repeat([]byte{kind}, int(n))...)
			add(idle...)
			add(append(idle, opCloseNotify)...)
			add(append(idle, opAlert, 2, 40)...)
			add(append(idle, opAlertBytes, 1, 1)...)
			add(append(idle, opKeyUpdate, 2)...)
			add(append(idle, opHandshake, 4, messageKeyUpdate, 0, 0, 0)...)
			add(append(idle, opHandshake, 4, 11, 5, 0, 0)...)
		}
	}
	return scripts
}
