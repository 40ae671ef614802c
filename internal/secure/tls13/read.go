package tls13

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// ReadInPlace decrypts the complete TLS records at the beginning of records and overwrites them. plaintext is the
// application data in these records, and used is the number of bytes that ReadInPlace has consumed. plaintext is valid
// until records is changed or ReadInPlace is called again.
//
// plaintext may contain data even if there is an error. If the error is nil, call ReadInPlace again with the unconsumed
// bytes. ReadInPlace may write alerts and answers to KeyUpdate messages to out. The errors are:
//
//   - ErrAgain: more ciphertext is needed. All bytes are consumed, and the connection stores an incomplete record until
//     the rest of the record arrives.
//   - io.EOF: the peer has sent close_notify. Writing is still possible.
//   - any other: the connection is broken. Send the bytes in out, and then close the connection.
//
// Errors other than ErrAgain are final; discard the remaining ciphertext.
func (c *Conn) ReadInPlace(out Output, records []byte) (plaintext []byte, used int, err error) {
	if c.is(partialIsUsed) {
		c.releasePartialRecord()
	}
	start, end := 0, 0 // of the plaintext in records
	for err == nil {
		switch {
		case c.is(broken):
			err = ErrBroken
			continue
		case c.is(receivedClose):
			err = io.EOF
			continue
		}
		var record, content []byte
		var n int
		if record, n, err = c.nextRecord(out, records[used:]); err == nil {
			content, err = c.decryptAndHandleRecord(out, record)
		}
		switch {
		case err != nil || len(content) == 0:
		case c.is(partialIsUsed): // content is in partial, not in records
			return content, used + n, nil
		case end == 0:
			start = used + HeaderLen
			end = start + len(content)
		default:
			end += copy(records[end:], content)
		}
		if c.is(partialIsUsed) {
			c.releasePartialRecord()
		}
		used += n
	}
	return records[start:end:end], used, err
}

// nextRecord returns the next complete record. The record begins with the bytes stored in c.rare.partial, if there are
// any, and continues in p. used is the number of bytes of p that nextRecord has consumed. If no record is complete, it
// stores all of p in c.rare.partial and returns ErrAgain.
func (c *Conn) nextRecord(out Output, p []byte) (record []byte, used int, err error) {
	if !c.HasPartialRecord() {
		n, err := c.checkedRecordLenOrHeaderLen(out, p)
		if err != nil || n <= len(p) {
			return p[:n], n, err
		}
		if len(p) > 0 {
			c.appendPartialRecord(p, n)
		}
		return nil, len(p), ErrAgain
	}
	for {
		n, err := c.checkedRecordLenOrHeaderLen(out, c.rare.partial)
		if err != nil {
			return nil, used, err
		}
		missing := n - len(c.rare.partial)
		if missing == 0 {
			c.flags |= partialIsUsed
			return c.rare.partial, used, nil
		}
		if used == len(p) {
			return nil, used, ErrAgain
		}
		k := min(missing, len(p)-used)
		c.appendPartialRecord(p[used:used+k], n)
		used += k
	}
}

// checkedRecordLenOrHeaderLen checks the header of the first record in b and returns the record's length. If the header
// is incomplete, it returns HeaderLen. If the header is invalid, it breaks the connection and returns an error.
func (c *Conn) checkedRecordLenOrHeaderLen(out Output, b []byte) (int, error) {
	if len(b) > 0 && b[0] != typeApplicationData {
		return 0, c.sendAlertAndBreak(out, alertUnexpectedMessage)
	}
	if len(b) < HeaderLen {
		return HeaderLen, nil
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	if n > maxCiphertext {
		return 0, c.sendAlertAndBreak(out, alertRecordOverflow)
	}
	return HeaderLen + n, nil
}

// decryptAndHandleRecord decrypts a record. If the record contains application data, it returns the data. Otherwise, it
// handles the alert or the handshake message in the record.
func (c *Conn) decryptAndHandleRecord(out Output, record []byte) (plaintext []byte, err error) {
	ciph := c.cachedOrNewCipher(&c.read)
	inner, err := ciph.aead.Open(record[HeaderLen:HeaderLen], ciph.nonceFor(c.read.sequence), record[HeaderLen:], record[:HeaderLen])
	if err != nil {
		return nil, c.sendAlertAndBreak(out, alertBadRecordMAC)
	}
	c.read.sequence++
	if len(inner) > maxPlaintext+1 {
		return nil, c.sendAlertAndBreak(out, alertRecordOverflow)
	}
	end := len(inner)
	for end > 0 && inner[end-1] == 0 {
		end--
	}
	if end == 0 { // padding only
		return nil, c.sendAlertAndBreak(out, alertUnexpectedMessage)
	}
	content, contentType := inner[:end-1:end-1], inner[end-1]
	c.idleRecords++
	if contentType == typeApplicationData && len(content) > 0 {
		c.idleRecords = 0
	}
	switch {
	case contentType != typeHandshake && c.hasPartialMessage(): // RFC 8446, section 5.1
	case contentType == typeAlert:
		return nil, c.handleAlert(out, content)
	case c.idleRecords > maxIdleRecords:
	case contentType == typeApplicationData:
		return content, nil
	case contentType == typeHandshake:
		return nil, c.handleHandshakeMessages(out, content)
	}
	return nil, c.sendAlertAndBreak(out, alertUnexpectedMessage)
}

func (c *Conn) handleAlert(out Output, content []byte) error {
	switch {
	case len(content) == 0: // RFC 8446, section 5.1
		return c.sendAlertAndBreak(out, alertUnexpectedMessage)
	case len(content) != 2:
		return c.sendAlertAndBreak(out, alertDecodeError)
	}
	switch alert := tls.AlertError(content[1]); alert {
	case alertCloseNotify:
		c.flags |= receivedClose
		c.releasePartialRecord()
		return io.EOF
	case alertUserCanceled: // close_notify follows
		if c.idleRecords > maxIdleRecords {
			return c.sendAlertAndBreak(out, alertUnexpectedMessage)
		}
		return nil
	default: // the level is ignored: RFC 8446, section 6
		c.flags |= broken | sentClose
		c.releasePartialRecord()
		return &net.OpError{Op: "remote error", Err: alert}
	}
}

func (c *Conn) hasPartialMessage() bool { return c.messageLen > 0 || c.skip > 0 }

func (c *Conn) handleHandshakeMessages(out Output, content []byte) error {
	if len(content) == 0 { // RFC 8446, section 5.1
		return c.sendAlertAndBreak(out, alertUnexpectedMessage)
	}
	for len(content) > 0 {
		if c.skip > 0 {
			n := min(int(c.skip), len(content))
			c.skip -= uint16(n)
			content = content[n:]
			continue
		}
		n := copy(c.message[c.messageLen:], content)
		c.messageLen += uint8(n)
		content = content[n:]
		messageType := c.message[0]
		if messageType != messageKeyUpdate && (messageType != messageNewSessionTicket || !c.is(isClient)) {
			return c.sendAlertAndBreak(out, alertUnexpectedMessage)
		}
		if c.messageLen < messageHeaderLen {
			return nil
		}
		length := int(c.message[1])<<16 | int(c.message[2])<<8 | int(c.message[3])
		if messageType == messageNewSessionTicket {
			if length == 0 || length >= maxMessage {
				return c.sendAlertAndBreak(out, alertDecodeError)
			}
			c.skip, c.messageLen = uint16(length), 0
			continue
		}
		if length != 1 {
			return c.sendAlertAndBreak(out, alertDecodeError)
		}
		if len(content) == 0 {
			return nil
		}
		c.messageLen = 0
		return c.handleKeyUpdate(out, content)
	}
	return nil
}

// handleKeyUpdate changes the key for receiving. If the peer has requested an answer, handleKeyUpdate also sends a
// KeyUpdate and changes the key for sending.
func (c *Conn) handleKeyUpdate(out Output, body []byte) error {
	switch {
	case len(body) > 1: // a key changes only between records: RFC 8446, section 5.1
		return c.sendAlertAndBreak(out, alertUnexpectedMessage)
	case body[0] > 1:
		return c.sendAlertAndBreak(out, alertIllegalParameter)
	}
	c.advanceSecretAndResetSequence(&c.read)
	c.flags &^= updateAwaited
	if body[0] == updateRequested && !c.is(sentClose) {
		c.writeKeyUpdateAndChangeKey(out, updateNotRequested)
	}
	return nil
}

// IsReadClosed reports whether the peer has sent close_notify.
func (c *Conn) IsReadClosed() bool { return c.is(receivedClose) }

// HasPartialRecord reports whether the connection stores the beginning of an incomplete record.
func (c *Conn) HasPartialRecord() bool {
	return c.rare != nil && len(c.rare.partial) > 0 && !c.is(partialIsUsed)
}

// PartialRecordMemory returns the size, in bytes, of the buffer for an incomplete record.
func (c *Conn) PartialRecordMemory() int {
	if c.rare == nil {
		return 0
	}
	return cap(c.rare.partial)
}

// maxSmallPartial is the maximum size, in bytes, of an incomplete record that is stored without a pooled buffer.
const maxSmallPartial = 2 << 10

var partialBuffers = sync.Pool{New: func() any { return new([MaxRecord]byte) }}

// appendPartialRecord appends p to the stored beginning of a record. recordLen is the length of the complete record.
func (c *Conn) appendPartialRecord(p []byte, recordLen int) {
	if c.rare == nil {
		c.rare = new(rareState)
	}
	r := c.rare
	if n := len(r.partial) + len(p); n > maxSmallPartial && cap(r.partial) < MaxRecord {
		pooled := partialBuffers.Get().(*[MaxRecord]byte)
		r.partial = append(pooled[:0], r.partial...)
	} else if r.partial == nil {
		r.partial = make([]byte, 0, min(recordLen, maxSmallPartial))
	}
	r.partial = append(r.partial, p...)
}

func (c *Conn) releasePartialRecord() {
	c.flags &^= partialIsUsed
	if c.rare == nil || c.rare.partial == nil {
		return
	}
	if cap(c.rare.partial) == MaxRecord {
		partialBuffers.Put((*[MaxRecord]byte)(c.rare.partial[:MaxRecord]))
	}
	c.rare.partial = nil
	if c.suite != aes256GCMSHA384 {
		c.rare = nil
	}
}
