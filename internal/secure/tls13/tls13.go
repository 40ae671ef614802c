// Package tls13 implements the record protocol of TLS 1.3 (RFC 8446, section 5) for connections whose handshake
// crypto/tls has performed. It also handles the messages that may follow a handshake: alerts (section 6), KeyUpdate
// (section 4.6.3) and, for a client, NewSessionTicket (section 4.6.1).
//
// crypto/tls needs at least 5 KB for a connection. A [Conn] needs about 100 bytes: the traffic secrets, the sequence
// numbers and, only while a record is incomplete, its first part. The AEADs, which take 800 bytes each, are derived
// from the secrets when they are needed. A [CipherCache] keeps those of active connections.
//
// # States
//
// Each direction is in one of two states. The sending direction is open until CloseWrite sends close_notify. The
// receiving direction is open until the peer's close_notify arrives; data after it is ignored. A violation of the
// protocol or a fatal alert breaks both directions.
//
// # Ownership
//
// A Conn has one owner at a time. The owner calls all methods and does the I/O. A CipherCache is safe for concurrent
// use.
package tls13

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
)

// Sizes and type numbers of records and messages: RFC 8446, sections 5 and 6.
const (
	HeaderLen      = 5
	maxPlaintext   = 16 << 10
	maxCiphertext  = maxPlaintext + 256
	MaxRecord      = HeaderLen + maxCiphertext
	tagLen         = 16
	recordOverhead = HeaderLen + 1 + tagLen // header, content type and tag

	typeAlert           = 21
	typeHandshake       = 22
	typeApplicationData = 23

	messageNewSessionTicket = 4
	messageKeyUpdate        = 24
	messageHeaderLen        = 4

	alertWarning = 1
	alertFatal   = 2
)

// maxIdleRecords is how many records in a row may contain no application data. More such records break the connection.
// BoringSSL and rustls have the same limit.
const maxIdleRecords = 32

// maxRecordsPerKey is the number of records after which a KeyUpdate replaces the sending key (RFC 8446, section 5.5).
const maxRecordsPerKey = 1 << 24

// maxMessage limits the size in bytes of a NewSessionTicket message, as in crypto/tls.
const maxMessage = 64 << 10

// An Output receives the records that a Conn sends.
type Output interface {
	// AppendSpace appends n bytes to the output and returns these bytes. The Conn fills the bytes before its next call.
	AppendSpace(n int) (record []byte)
}

// ErrAgain is returned by Conn.ReadInPlace if more ciphertext is needed.
var ErrAgain = errors.New("tls13: no plaintext is available yet")

// ErrBroken is returned by the methods of a Conn after an error has broken the connection.
var ErrBroken = errors.New("tls13: the connection has failed")

// errWriteClosed is returned by Conn.Write and Conn.UpdateKeys after CloseWrite.
var errWriteClosed = errors.New("tls13: write after close_notify was sent")

// Conn is one end of a TLS 1.3 connection after its handshake. Every idle connection has a Conn, so Conn must stay
// small.
type Conn struct {
	read, write direction
	cache       *CipherCache
	rare        *rareState // nil if all its fields would be zero

	skip        uint16  // how many bytes of a NewSessionTicket to skip
	message     [4]byte // the first messageLen bytes of an incomplete handshake message
	messageLen  uint8
	idleRecords uint8 // consecutive records without application data
	sentRecords uint8 // number of sent records, at most recordsUntilFull
	suite       suite
	flags       flags
}

// direction is the state of one direction of a connection: sending or receiving.
type direction struct {
	secret   [32]byte // the traffic secret; for SHA-384, its first 32 bytes
	sequence uint64
}

type flags uint8

const (
	isClient flags = 1 << iota
	sentClose
	receivedClose
	broken
	partialIsUsed // the plaintext that ReadInPlace returned is in partial
	updateAwaited // this end has requested a KeyUpdate
)

type rareState struct {
	tails   [2][16]byte // for SHA-384, the last 16 bytes of the secrets of the fields read and write
	partial []byte      // the first part of an incomplete record
}

// NewConn returns a connection with the given traffic secrets, which have 32 or 48 bytes depending on cipherSuite.
// sentRecords is the number of records that were already encrypted with writeSecret.
func NewConn(cipherSuite uint16, asClient bool, readSecret, writeSecret []byte, sentRecords int, cache *CipherCache) (c Conn, err error) {
	s, err := parseSuite(cipherSuite)
	if err != nil {
		return c, err
	}
	if len(readSecret) != s.secretLen() || len(writeSecret) != s.secretLen() {
		return c, fmt.Errorf("tls13: secrets of %d and %d bytes; expected %d", len(readSecret), len(writeSecret), s.secretLen())
	}
	c.suite, c.cache = s, cache
	if asClient {
		c.flags = isClient
	}
	c.storeSecret(&c.read, readSecret)
	c.storeSecret(&c.write, writeSecret)
	c.write.sequence = uint64(sentRecords)
	return c, nil
}

// IsSupported reports whether NewConn supports cipherSuite.
func IsSupported(cipherSuite uint16) bool {
	_, err := parseSuite(cipherSuite)
	return err == nil
}

func (c *Conn) CipherSuite() uint16 { return c.suite.id() }

func (c *Conn) IsClient() bool { return c.flags&isClient != 0 }

// Close erases the secrets. The connection must not be used afterwards.
func (c *Conn) Close() {
	c.cache.remove(&c.read.secret, c.IsClient())
	c.cache.remove(&c.write.secret, c.IsClient())
	c.releasePartialRecord()
	if c.rare != nil {
		*c.rare = rareState{}
	}
	*c = Conn{flags: broken, cache: c.cache}
}

func (c *Conn) is(f flags) bool { return c.flags&f != 0 }

// sendAlertAndBreak sends an alert, unless CloseWrite was called. It breaks the connection and returns the alert.
func (c *Conn) sendAlertAndBreak(out Output, alert tls.AlertError) error {
	if !c.is(sentClose) {
		c.writeRecordChangingKeyIfSpent(out, typeAlert, []byte{alertFatal, byte(alert)})
	}
	c.flags |= broken
	c.releasePartialRecord()
	return &net.OpError{Op: "local error", Err: alert} // as crypto/tls reports it
}

// Alert codes: RFC 8446, section 6.
const (
	alertCloseNotify       tls.AlertError = 0
	alertUnexpectedMessage tls.AlertError = 10
	alertBadRecordMAC      tls.AlertError = 20
	alertRecordOverflow    tls.AlertError = 22
	alertIllegalParameter  tls.AlertError = 47
	alertDecodeError       tls.AlertError = 50
	alertUserCanceled      tls.AlertError = 90
)
