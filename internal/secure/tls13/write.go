package tls13

import "encoding/binary"

// Records grow from the size of a TCP segment to the maximum, so that a client can decrypt the start of a response
// early. crypto/tls uses the same sizes.
const (
	firstRecordLen   = 1208 - recordOverhead
	recordsUntilFull = (maxPlaintext + firstRecordLen - 1) / firstRecordLen
)

const (
	updateNotRequested = 0
	updateRequested    = 1
)

// Write encrypts plaintext and writes the records to out. It fails if the connection is broken or after CloseWrite.
func (c *Conn) Write(out Output, plaintext []byte) error {
	switch {
	case c.is(broken):
		return errBroken
	case c.is(sentClose):
		return errWriteClosed
	}
	if c.is(updateDue) && len(plaintext) > 0 {
		c.writeKeyUpdate(out, updateNotRequested)
	}
	for len(plaintext) > 0 {
		n := min(len(plaintext), maxPlaintext, (int(c.sentRecords)+1)*firstRecordLen)
		if c.sentRecords < recordsUntilFull {
			c.sentRecords++
		}
		c.writeRecord(out, typeApplicationData, plaintext[:n])
		plaintext = plaintext[n:]
	}
	return nil
}

// DisableSmallRecords makes Write use records of the maximum size from the start.
func (c *Conn) DisableSmallRecords() { c.sentRecords = recordsUntilFull }

// CloseWrite sends close_notify. Reading is still possible. Further calls have no effect.
func (c *Conn) CloseWrite(out Output) error {
	switch {
	case c.is(broken):
		return errBroken
	case c.is(sentClose):
		return nil
	}
	c.writeRecord(out, typeAlert, []byte{alertWarning, byte(alertCloseNotify)})
	c.flags |= sentClose
	return nil
}

func (c *Conn) writeRecord(out Output, contentType byte, content []byte) {
	if c.write.sequence >= maxRecordsPerKey {
		c.writeKeyUpdate(out, updateNotRequested)
	}
	c.sealRecord(out, contentType, content)
}

// UpdateKeys changes the key for sending and requests that the peer does the same. Write changes the key by itself
// before it has been used too often.
func (c *Conn) UpdateKeys(out Output) error {
	switch {
	case c.is(broken):
		return errBroken
	case c.is(sentClose):
		return errWriteClosed
	}
	c.writeKeyUpdate(out, updateRequested)
	return nil
}

// writeKeyUpdate sends a KeyUpdate and then changes the key for sending.
func (c *Conn) writeKeyUpdate(out Output, request byte) {
	c.sealRecord(out, typeHandshake, []byte{messageKeyUpdate, 0, 0, 1, request})
	c.updateSecret(&c.write)
	c.flags &^= updateDue
}

func (c *Conn) sealRecord(out Output, contentType byte, content []byte) {
	ciph := c.cipherOf(&c.write)
	nonce := ciph.nonceFor(c.write.sequence)
	c.write.sequence++
	record := out.AppendSpace(len(content) + recordOverhead)
	header := append(record[:0], typeApplicationData, 3, 3)
	header = binary.BigEndian.AppendUint16(header, uint16(len(content)+1+tagLen))
	inner := append(append(record[HeaderLen:HeaderLen], content...), contentType)
	ciph.aead.Seal(inner[:0], nonce, inner, header)
}
