package tls13

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"hash"
)

type suite uint8

const (
	aes128GCMSHA256 suite = iota
	aes256GCMSHA384
)

func parseSuite(id uint16) (suite, error) {
	switch id {
	case tls.TLS_AES_128_GCM_SHA256:
		return aes128GCMSHA256, nil
	case tls.TLS_AES_256_GCM_SHA384:
		return aes256GCMSHA384, nil
	}
	return 0, fmt.Errorf("tls13: cipher suite %s; expected TLS_AES_128_GCM_SHA256 or TLS_AES_256_GCM_SHA384", tls.CipherSuiteName(id))
}

func (s suite) id() uint16 {
	if s == aes256GCMSHA384 {
		return tls.TLS_AES_256_GCM_SHA384
	}
	return tls.TLS_AES_128_GCM_SHA256
}

func (s suite) secretLen() int {
	if s == aes256GCMSHA384 {
		return sha512.Size384
	}
	return sha256.Size
}

func (s suite) keyLen() int {
	if s == aes256GCMSHA384 {
		return 32
	}
	return 16
}

// expandLabel implements HKDF-Expand-Label with an empty context: RFC 8446, section 7.1.
func (s suite) expandLabel(secret []byte, label string, length int) []byte {
	newHash := sha256.New
	if s == aes256GCMSHA384 {
		newHash = func() hash.Hash { return sha512.New384() }
	}
	label = "tls13 " + label
	info := binary.BigEndian.AppendUint16(make([]byte, 0, 32), uint16(length))
	info = append(info, byte(len(label)))
	info = append(info, label...)
	info = append(info, 0)
	key, err := hkdf.Expand(newHash, secret, string(info), length)
	if err != nil {
		panic(err) // the length is too large, which it never is
	}
	return key
}

// directionCipher encrypts or decrypts the records of one direction.
type directionCipher struct {
	aead      cipher.AEAD
	iv, nonce [12]byte
}

func (s suite) newCipher(secret []byte) *directionCipher {
	key := s.expandLabel(secret, "key", s.keyLen())
	defer clear(key)
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the length of the key is right
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // the block size is right
	}
	c := &directionCipher{aead: aead}
	copy(c.iv[:], s.expandLabel(secret, "iv", len(c.iv)))
	return c
}

// nonceFor returns the nonce for the record with the given sequence number (RFC 8446, section 5.3). The nonce is valid
// until the next call of nonceFor.
func (c *directionCipher) nonceFor(sequence uint64) []byte {
	c.nonce = c.iv
	low := c.nonce[4:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)^sequence)
	return c.nonce[:]
}

// secretTailOf returns where bytes 32 to 47 of the secret of d are stored. Only the secrets of SHA-384 suites have
// these bytes.
func (c *Conn) secretTailOf(d *direction) *[16]byte {
	if c.rare == nil {
		c.rare = new(rareState)
	}
	if d == &c.read {
		return &c.rare.tails[0]
	}
	return &c.rare.tails[1]
}

func (c *Conn) storeSecret(d *direction, secret []byte) {
	if n := copy(d.secret[:], secret); n < len(secret) {
		copy(c.secretTailOf(d)[:], secret[n:])
	}
}

func (c *Conn) appendSecret(dst []byte, d *direction) []byte {
	dst = append(dst, d.secret[:]...)
	if c.suite == aes256GCMSHA384 {
		dst = append(dst, c.secretTailOf(d)[:]...)
	}
	return dst
}

func (c *Conn) cachedOrNewCipher(d *direction) *directionCipher {
	if found := c.cache.lookup(&d.secret, c.IsClient()); found != nil {
		return found
	}
	var buffer [sha512.Size384]byte
	made := c.suite.newCipher(c.appendSecret(buffer[:0], d))
	clear(buffer[:])
	c.cache.put(&d.secret, c.IsClient(), made)
	return made
}

// advanceSecretAndResetSequence replaces the traffic secret of d after a KeyUpdate (RFC 8446, section 7.2).
func (c *Conn) advanceSecretAndResetSequence(d *direction) {
	var buffer [sha512.Size384]byte
	next := c.suite.expandLabel(c.appendSecret(buffer[:0], d), "traffic upd", c.suite.secretLen())
	c.cache.remove(&d.secret, c.IsClient())
	c.storeSecret(d, next)
	d.sequence = 0
	clear(next)
	clear(buffer[:])
}

// CountRecordsEncryptedWith returns how many records in sent are encrypted with secret, which is an application traffic
// secret. sent must consist of complete records. firstSequence is the number of records before sent that were encrypted
// with secret.
func CountRecordsEncryptedWith(cipherSuite uint16, secret, sent []byte, firstSequence int) (count int) {
	s, err := parseSuite(cipherSuite)
	if err != nil {
		return 0
	}
	c := s.newCipher(secret)
	for len(sent) >= HeaderLen {
		n := HeaderLen + int(binary.BigEndian.Uint16(sent[3:]))
		if n > len(sent) {
			break
		}
		if sent[0] == typeApplicationData {
			if _, err := c.aead.Open(nil, c.nonceFor(uint64(firstSequence+count)), sent[HeaderLen:n], sent[:HeaderLen]); err == nil {
				count++
			}
		}
		sent = sent[n:]
	}
	return count
}
