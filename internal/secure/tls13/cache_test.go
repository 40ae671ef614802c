package tls13

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// secretInSet returns a secret whose first place of the set is way, for the set with index 0.
func secretInSet(number, way byte) *[32]byte { return &[32]byte{4: way, 5: number} }

func newTestCipher() *directionCipher { return aes128GCMSHA256.newCipher(make([]byte, 32)) }

func checkCached(t *testing.T, cc *CipherCache, secret *[32]byte, isClient bool, want *directionCipher) {
	t.Helper()
	if got := cc.lookup(secret, isClient); got != want {
		t.Errorf("get(%x, %v) = %p, want %p", secret[:6], isClient, got, want)
	}
}

func TestCipherCache(t *testing.T) {
	var cc CipherCache
	defer cc.Close()
	a, b := secretInSet(1, 0), secretInSet(2, 0)
	checkCached(t, &cc, a, false, nil)
	cc.remove(a, false)
	ofServer, ofClient := newTestCipher(), newTestCipher()
	cc.put(a, false, ofServer)
	cc.put(a, true, ofClient)
	checkCached(t, &cc, a, false, ofServer)
	checkCached(t, &cc, a, true, ofClient)
	checkCached(t, &cc, b, false, nil)
	cc.remove(a, true)
	checkCached(t, &cc, a, false, ofServer)
	checkCached(t, &cc, a, true, nil)
}

// TestCipherCacheEviction fills a set of four places and adds a fifth cipher.
func TestCipherCacheEviction(t *testing.T) {
	for _, c := range []struct {
		name    string
		isUsed  [cacheWays]bool // lately
		evicted int
	}{
		{"all used", [cacheWays]bool{true, true, true, true}, 2}, // the place that the secret selects
		{"first unused", [cacheWays]bool{false, true, true, true}, 0},
		{"last unused", [cacheWays]bool{true, true, true, false}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			var cc CipherCache
			defer cc.Close()
			var ciphers [cacheWays]*directionCipher
			for i := range ciphers {
				ciphers[i] = newTestCipher()
				cc.put(secretInSet(byte(i), 0), false, ciphers[i])
			}
			for i := range ciphers {
				checkCached(t, &cc, secretInSet(byte(i), 0), false, ciphers[i])
				cc.places.Load()[0][i].Load().isUsed.Store(c.isUsed[i])
			}
			added := newTestCipher()
			cc.put(secretInSet(9, 2), false, added)
			checkCached(t, &cc, secretInSet(9, 2), false, added)
			ciphers[c.evicted] = nil
			for i := range ciphers {
				checkCached(t, &cc, secretInSet(byte(i), 0), false, ciphers[i])
			}
			cc.remove(secretInSet(9, 2), false)
			cc.put(secretInSet(7, 0), false, newTestCipher())
			if e := cc.places.Load()[0][c.evicted].Load(); e == nil || e.secret != *secretInSet(7, 0) {
				t.Error("a cipher that was added has not taken the free place")
			}
		})
	}
}

// TestCipherCacheTimer checks when unused ciphers are dropped, and that an empty cache has no timer.
func TestCipherCacheTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cc CipherCache
		unused, used := secretInSet(1, 0), secretInSet(2, 0)
		for range 2 { // the second time the timer has stopped before
			cc.put(used, false, newTestCipher())
			time.Sleep(time.Second)
			cc.put(unused, false, newTestCipher())
			for age := time.Second; age < 3*cachePeriod; age += time.Second {
				if cc.lookup(used, false) == nil {
					t.Errorf("a cipher in use was dropped after %v", age)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if isKept := cc.contains(unused); age < cachePeriod && !isKept || age > 2*cachePeriod && isKept {
					t.Errorf("after %v an unused cipher is kept: %v", age, isKept)
				}
			}
			time.Sleep(2*cachePeriod + time.Second)
			synctest.Wait()
			if cc.contains(used) || cc.isArmed.Load() {
				t.Errorf("after 10 s: contains %v, timer %v; want neither", cc.contains(used), cc.isArmed.Load())
			}
		}
		cc.Close()
	})
}

// contains is like get, but is no use of the cipher.
func (cc *CipherCache) contains(secret *[32]byte) bool {
	places := cc.places.Load()
	for i := range cacheWays {
		if e := places[setIndex(secret)][i].Load(); e != nil && e.secret == *secret {
			return true
		}
	}
	return false
}

func TestCipherCacheClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cc CipherCache
		cc.Close()
		cc.put(secretInSet(1, 0), false, newTestCipher())
		if cc.isArmed.Load() {
			t.Error("put after Close has started a timer")
		}
		var second CipherCache
		second.put(secretInSet(1, 0), false, newTestCipher())
		second.Close()
		checkCached(t, &second, secretInSet(1, 0), false, nil)
		second.dropUnused() // the timer may have fired just before Close
		again := newTestCipher()
		second.put(secretInSet(1, 0), false, again)
		checkCached(t, &second, secretInSet(1, 0), false, again)
		time.Sleep(3 * cachePeriod)
		synctest.Wait()
		checkCached(t, &second, secretInSet(1, 0), false, again) // no timer drops it
	})
}

// TestCipherCacheConcurrency has many connections, whose ciphers need more places than a set has, transfer data and
// update keys, while ciphers are dropped and the cache is closed.
func TestCipherCacheConcurrency(t *testing.T) {
	var cc CipherCache
	defer cc.Close()
	var connections sync.WaitGroup
	for i := range byte(8) {
		connections.Go(func() {
			server, client := newTestPairOf(t, aes128GCMSHA256, secretInSet(i, 0)[:], secretInSet(i+100, 1)[:], &cc)
			for range 500 {
				server.receive(client.writePlaintext("x"))
				client.receive(server.writePlaintext("y"))
				if i == 0 {
					cc.Close()
				} else {
					cc.dropUnused()
				}
			}
			server.receive(client.sealKeyUpdate(updateRequested))
			client.receive(server.takeOutput())
			server.receive(client.writePlaintext("x"))
			server.checkGot(strings.Repeat("x", 501))
			client.checkGot(strings.Repeat("y", 500))
			if server.err != nil || client.err != nil {
				t.Errorf("server: %v, client: %v", server.err, client.err)
			}
			server.Close()
			client.Close()
		})
	}
	connections.Wait()
}
