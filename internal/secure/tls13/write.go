package tls13

import "encoding/binary"

// Sizes of the first records of a connection, as in crypto/tls. They are small so that a client can decrypt the start
// of a response before the rest has arrived.
const (
	firstRecordLen   = 1208 - recordOverhead
	recordsUntilFull = (maxPlaintext + firstRecordLen - 1) / firstRecordLen
)

const (
	updateNotRequested = 0
	updateRequested    = 1
)

// Write encrypts plaintext and appends the records to out. It fails on a broken connection or after CloseWrite.
func (c *Conn) Write(out Output, plaintext []byte) error {
	switch {
	case c.is(broken):
		return ErrBroken
	case c.is(sentClose):
		return errWriteClosed
	}
	for len(plaintext) > 0 {
		n := min(len(plaintext), maxPlaintext, (int(c.sentRecords)+1)*firstRecordLen)
		if c.sentRecords < recordsUntilFull {
			c.sentRecords++
		}
		c.writeRecordChangingKeyIfSpent(out, typeApplicationData, plaintext[:n])
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
		return ErrBroken
	case c.is(sentClose):
		return nil
	}
	c.writeRecordChangingKeyIfSpent(out, typeAlert, []byte{alertWarning, byte(alertCloseNotify)})
	c.flags |= sentClose
	return nil
}

func (c *Conn) writeRecordChangingKeyIfSpent(out Output, contentType byte, content []byte) {
	if c.write.sequence >= maxRecordsPerKey {
		c.writeKeyUpdateAndChangeKey(out, updateNotRequested)
	}
	c.sealRecord(out, contentType, content)
}

// UpdateKeys changes the key for sending and asks the peer to change its key, too. Calling UpdateKeys is optional,
// because Write changes the key for sending after maxRecordsPerKey records.
func (c *Conn) UpdateKeys(out Output) error {
	switch {
	case c.is(broken):
		return ErrBroken
	case c.is(sentClose):
		return errWriteClosed
	}
	request := byte(updateRequested)
	if c.is(updateAwaited) { // RFC 8446, section 4.6.3
		request = updateNotRequested
	}
	c.writeKeyUpdateAndChangeKey(out, request)
	c.flags |= updateAwaited
	return nil
}

func (c *Conn) writeKeyUpdateAndChangeKey(out Output, request byte) {
	c.sealRecord(out, typeHandshake, []byte{messageKeyUpdate, 0, 0, 1, request})
	c.advanceSecretAndResetSequence(&c.write)
}

func (c *Conn) sealRecord(out Output, contentType byte, content []byte) {
	ciph := c.cachedOrNewCipher(&c.write)
	nonce := ciph.nonceFor(c.write.sequence)
	c.write.sequence++
	record := out.AppendSpace(len(content) + recordOverhead)
	header := append(record[:0], typeApplicationData, 3, 3)
	header = binary.BigEndian.AppendUint16(header, uint16(len(content)+1+tagLen))
	inner := append(append(record[HeaderLen:HeaderLen], content...), contentType)
	ciph.aead.Seal(inner[:0], nonce, inner, header)
}
