package tls13

import (
	"encoding/binary"
	"errors"
)

const savedVersion = 1

var errBadState = errors.New("tls13: saved state is truncated, invalid or of a different version")

// AppendState appends the complete state of the connection to dst, so that RestoreConn can continue the connection, for
// example in another process. Do not use c once RestoreConn has been called. Keep the state secret, because anyone who
// has it can read and change the traffic.
func (c *Conn) AppendState(dst []byte) []byte {
	dst = append(dst, savedVersion, byte(c.suite), byte(c.flags&^partialIsUsed), c.messageLen, c.idleRecords, c.sentRecords)
	dst = append(dst, c.message[:]...)
	dst = binary.BigEndian.AppendUint16(dst, c.skip)
	for _, d := range []*direction{&c.read, &c.write} {
		dst = binary.BigEndian.AppendUint64(dst, d.sequence)
		dst = c.appendSecret(dst, d)
	}
	if c.HasPartialRecord() {
		dst = append(dst, c.rare.partial...)
	}
	return dst
}

// RestoreConn returns a connection that continues from state, which AppendState has written. It does not retain state.
func RestoreConn(state []byte, cache *CipherCache) (c Conn, err error) {
	const fixedLen = 12
	if len(state) < fixedLen || state[0] != savedVersion || suite(state[1]) > aes256GCMSHA384 {
		return c, errBadState
	}
	c = Conn{suite: suite(state[1]), flags: flags(state[2]), messageLen: state[3], idleRecords: state[4], sentRecords: state[5], cache: cache}
	copy(c.message[:], state[6:])
	c.skip = binary.BigEndian.Uint16(state[10:])
	state = state[fixedLen:]
	for _, d := range []*direction{&c.read, &c.write} {
		if len(state) < 8+c.suite.secretLen() {
			return c, errBadState
		}
		d.sequence = binary.BigEndian.Uint64(state)
		c.storeSecret(d, state[8:8+c.suite.secretLen()])
		state = state[8+c.suite.secretLen():]
	}
	if c.messageLen > messageHeaderLen || c.is(partialIsUsed) || len(state) >= MaxRecord {
		return c, errBadState
	}
	if len(state) >= HeaderLen && len(state) > HeaderLen+int(binary.BigEndian.Uint16(state[3:])) {
		return c, errBadState // more than a record
	}
	if len(state) > 0 {
		c.appendPartialRecord(state, MaxRecord)
	}
	return c, nil
}
