package tls13

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// Read decrypts the first record in ciphertext in place. It returns the application data in the record, which is valid
// until ciphertext changes or Read is called again, and the number of bytes of ciphertext consumed. Call Read with the
// remaining ciphertext until it returns an error. Read may write an alert or a KeyUpdate to out. The errors:
//
//   - ErrAgain: more ciphertext is needed. All of it is consumed, and an incomplete record is kept.
//   - io.EOF: the peer has sent close_notify. Writing is still possible.
//   - any other: the connection is broken. Send the output and close.
//
// Errors other than ErrAgain are final; discard the remaining ciphertext.
func (c *Conn) Read(out Output, ciphertext []byte) (plaintext []byte, used int, err error) {
	if c.is(partialIsUsed) {
		c.releasePartial()
	}
	for {
		switch {
		case c.is(broken):
			return nil, used, errBroken
		case c.is(receivedClose):
			return nil, used, io.EOF
		}
		record, n, err := c.takeRecord(out, ciphertext[used:])
		used += n
		if err != nil {
			return nil, used, err
		}
		plaintext, err = c.readRecord(out, record)
		if err != nil || len(plaintext) > 0 {
			return plaintext, used, err
		}
		c.releasePartial()
	}
}

// takeRecord returns the next complete record, in p or in partial, and how many bytes of p it has used. If there is
// none, it keeps all of p and returns ErrAgain.
func (c *Conn) takeRecord(out Output, p []byte) (record []byte, used int, err error) {
	if !c.HasPartialRecord() {
		n, err := c.checkedRecordLen(out, p)
		if err != nil || n <= len(p) {
			return p[:n], n, err
		}
		if len(p) > 0 {
			c.appendPartial(p, n)
		}
		return nil, len(p), ErrAgain
	}
	for {
		n, err := c.checkedRecordLen(out, c.rare.partial)
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
		c.appendPartial(p[used:used+k], n)
		used += k
	}
}

// checkedRecordLen returns the length of the first record in b, or the length of a header if b is shorter than that.
// It checks the header: RFC 8446, sections 5.1 and 5.2. The version is ignored, as required there.
func (c *Conn) checkedRecordLen(out Output, b []byte) (int, error) {
	if len(b) > 0 && b[0] != typeApplicationData {
		return 0, c.fail(out, alertUnexpectedMessage)
	}
	if len(b) < HeaderLen {
		return HeaderLen, nil
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	if n > maxCiphertext {
		return 0, c.fail(out, alertRecordOverflow)
	}
	return HeaderLen + n, nil
}

// readRecord decrypts a record and handles its content. It returns application data.
func (c *Conn) readRecord(out Output, record []byte) (plaintext []byte, err error) {
	ciph := c.cipherOf(&c.read)
	inner, err := ciph.aead.Open(record[HeaderLen:HeaderLen], ciph.nonceFor(c.read.sequence), record[HeaderLen:], record[:HeaderLen])
	if err != nil {
		return nil, c.fail(out, alertBadRecordMAC)
	}
	c.read.sequence++
	if len(inner) > maxPlaintext+1 {
		return nil, c.fail(out, alertRecordOverflow)
	}
	end := len(inner)
	for end > 0 && inner[end-1] == 0 {
		end--
	}
	if end == 0 { // padding only
		return nil, c.fail(out, alertUnexpectedMessage)
	}
	content, contentType := inner[:end-1], inner[end-1]
	c.idleRecords++
	if contentType == typeApplicationData && len(content) > 0 {
		c.idleRecords = 0
	}
	switch {
	case contentType != typeHandshake && c.hasPartialMessage(): // RFC 8446, section 5.1
	case contentType == typeAlert:
		return nil, c.readAlert(out, content)
	case c.idleRecords > maxIdleRecords:
	case contentType == typeApplicationData:
		return content, nil
	case contentType == typeHandshake:
		return nil, c.readMessages(out, content)
	}
	return nil, c.fail(out, alertUnexpectedMessage)
}

func (c *Conn) readAlert(out Output, content []byte) error {
	switch {
	case len(content) == 0: // RFC 8446, section 5.1
		return c.fail(out, alertUnexpectedMessage)
	case len(content) != 2:
		return c.fail(out, alertDecodeError)
	}
	switch alert := tls.AlertError(content[1]); alert {
	case alertCloseNotify:
		c.flags |= receivedClose
		c.releasePartial()
		return io.EOF
	case alertUserCanceled: // close_notify follows
		if c.idleRecords > maxIdleRecords {
			return c.fail(out, alertUnexpectedMessage)
		}
		return nil
	default: // the level is ignored: RFC 8446, section 6
		c.flags |= broken | sentClose
		c.releasePartial()
		return &net.OpError{Op: "remote error", Err: alert}
	}
}

func (c *Conn) hasPartialMessage() bool { return c.messageLen > 0 || c.skip > 0 }

// readMessages handles handshake messages, of which the first may have begun and the last may end in another record.
func (c *Conn) readMessages(out Output, content []byte) error {
	if len(content) == 0 { // RFC 8446, section 5.1
		return c.fail(out, alertUnexpectedMessage)
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
			return c.fail(out, alertUnexpectedMessage)
		}
		if c.messageLen < messageHeaderLen {
			return nil
		}
		length := int(c.message[1])<<16 | int(c.message[2])<<8 | int(c.message[3])
		if messageType == messageNewSessionTicket {
			if length == 0 || length >= maxMessage {
				return c.fail(out, alertDecodeError)
			}
			c.skip, c.messageLen = uint16(length), 0
			continue
		}
		if length != 1 {
			return c.fail(out, alertDecodeError)
		}
		if len(content) == 0 {
			return nil
		}
		c.messageLen = 0
		return c.readKeyUpdate(out, content)
	}
	return nil
}

// readKeyUpdate handles a KeyUpdate, of which body is the last byte and what follows in the record.
func (c *Conn) readKeyUpdate(out Output, body []byte) error {
	switch {
	case len(body) > 1: // a key changes only between records: RFC 8446, section 5.1
		return c.fail(out, alertUnexpectedMessage)
	case body[0] > 1:
		return c.fail(out, alertIllegalParameter)
	}
	c.updateSecret(&c.read)
	if body[0] == updateRequested && !c.is(sentClose) {
		c.writeKeyUpdate(out)
	}
	return nil
}

// IsReadClosed reports whether the peer has sent close_notify.
func (c *Conn) IsReadClosed() bool { return c.is(receivedClose) }

// HasPartialRecord reports whether the first part of an incomplete record is kept.
func (c *Conn) HasPartialRecord() bool {
	return c.rare != nil && len(c.rare.partial) > 0 && !c.is(partialIsUsed)
}

// PartialRecordMemory returns the memory of an incomplete record in bytes.
func (c *Conn) PartialRecordMemory() int {
	if c.rare == nil {
		return 0
	}
	return cap(c.rare.partial)
}

// maxSmallPartial is the maximum size of a partial record in a slice of its own. A larger one is kept in a pooled
// buffer, because a long stream leaves a partial record after every read.
const maxSmallPartial = 2 << 10

var partialBuffers = sync.Pool{New: func() any { return new([MaxRecord]byte) }}

// appendPartial appends p to the partial record, of which recordLen bytes are expected.
func (c *Conn) appendPartial(p []byte, recordLen int) {
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

func (c *Conn) releasePartial() {
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
