package tls13

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"
)

// CipherCache keeps the ciphers of active connections, because deriving a cipher takes 3 µs. It holds at most 8,192
// ciphers, which take 7 MB. A cipher is dropped 5 to 10 seconds after its last use. The zero value is an empty cache. A
// CipherCache is safe for concurrent use.
type CipherCache struct {
	places atomic.Pointer[[cacheSets][cacheWays]atomic.Pointer[cachedCipher]] // nil until first used

	mu       sync.Mutex // guards the fields below
	timer    *time.Timer
	isArmed  atomic.Bool // may also be read without the lock
	isClosed bool
}

const (
	cacheSets   = 2048
	cacheWays   = 4
	cachePeriod = 5 * time.Second
)

// cachedCipher is the cipher with which one end of a connection either encrypts or decrypts. Any goroutine may read the
// other fields, but only the owner of the Conn may use the field cipher.
type cachedCipher struct {
	cipherID
	cipher *directionCipher
	isUsed atomic.Bool // since dropUnused was last called
}

// cipherID identifies a cipher in the cache. Both ends of a connection can be in the same process and have the same
// secret, so isClient tells the ends apart.
type cipherID struct {
	secret   [32]byte
	isClient bool
}

func setIndex(secret *[32]byte) uint32 { return binary.LittleEndian.Uint32(secret[:]) % cacheSets }

func (cc *CipherCache) lookup(secret *[32]byte, isClient bool) *directionCipher {
	places := cc.places.Load()
	if places == nil {
		return nil
	}
	set := &places[setIndex(secret)]
	for i := range set {
		e := set[i].Load()
		if e != nil && e.secret == *secret && e.isClient == isClient {
			if !e.isUsed.Load() { // a store would be slow for other processors
				e.isUsed.Store(true)
			}
			return e.cipher
		}
	}
	return nil
}

// put adds c to the cache. The secret selects the set of cacheWays entries to which c can be added. If all entries of
// the set are occupied, c replaces one of them.
func (cc *CipherCache) put(secret *[32]byte, isClient bool, c *directionCipher) {
	places := cc.places.Load()
	for places == nil { // loops if Close is called between the two calls
		cc.places.CompareAndSwap(nil, new([cacheSets][cacheWays]atomic.Pointer[cachedCipher]))
		places = cc.places.Load()
	}
	set := &places[setIndex(secret)]
	victim := &set[int(secret[4])%cacheWays]
	for i := range set {
		e := set[i].Load()
		if e == nil {
			victim = &set[i]
			break
		}
		if !e.isUsed.Load() {
			victim = &set[i]
		}
	}
	e := &cachedCipher{cipherID: cipherID{*secret, isClient}, cipher: c}
	e.isUsed.Store(true)
	victim.Store(e)
	if !cc.isArmed.Load() {
		cc.armDropTimer()
	}
}

func (cc *CipherCache) remove(secret *[32]byte, isClient bool) {
	places := cc.places.Load()
	if places == nil {
		return
	}
	set := &places[setIndex(secret)]
	for i := range set {
		if e := set[i].Load(); e != nil && e.secret == *secret && e.isClient == isClient {
			set[i].CompareAndSwap(e, nil)
		}
	}
}

func (cc *CipherCache) armDropTimer() {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if cc.isClosed || cc.isArmed.Load() {
		return
	}
	cc.isArmed.Store(true)
	if cc.timer == nil {
		cc.timer = time.AfterFunc(cachePeriod, cc.dropUnused)
	} else {
		cc.timer.Reset(cachePeriod)
	}
}

// dropUnused drops the ciphers that have not been used since the previous call of dropUnused.
func (cc *CipherCache) dropUnused() {
	cc.isArmed.Store(false) // so that a cipher that is added meanwhile arms the timer
	left := 0
	places := cc.places.Load()
	if places == nil { // Close was called after the timer had fired
		return
	}
	for i := range places {
		for j := range places[i] {
			e := places[i][j].Load()
			switch {
			case e == nil:
			case e.isUsed.Swap(false):
				left++
			default:
				places[i][j].CompareAndSwap(e, nil)
			}
		}
	}
	if left > 0 {
		cc.armDropTimer()
	}
}

// Close drops all ciphers and stops the timer. Do not use the cache afterwards.
func (cc *CipherCache) Close() {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	cc.isClosed = true
	if cc.timer != nil {
		cc.timer.Stop()
	}
	cc.places.Store(nil)
}
