package secure

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"
)

// SharedTicketKeys are session ticket keys in memory that several processes can share. Goroutines and processes may use
// the keys concurrently.
type SharedTicketKeys struct{ page *ticketPage }

// ticketPage is the layout of the shared memory. version is odd while a process changes the keys. If version is odd or
// changes while a reader copies the keys, the reader must try again.
type ticketPage struct {
	version atomic.Uint64
	keys    [MaxTicketKeys]struct {
		made atomic.Int64 // in Unix nanoseconds; 0 if there is no key
		key  [ticketKeySize / 8]atomic.Uint64
	}
}

// SharedTicketKeysSize is the number of bytes of memory that NewSharedTicketKeys needs.
const SharedTicketKeysSize = int(unsafe.Sizeof(ticketPage{}))

// maxTicketReads is how often a read of the keys is tried while another process changes the keys.
const maxTicketReads = 1000

// NewSharedTicketKeys returns the keys that are stored in the given memory. The memory must be aligned to 8 bytes and
// have at least SharedTicketKeysSize bytes. Before its first use, it must contain only zeros.
func NewSharedTicketKeys(memory []byte) *SharedTicketKeys {
	return &SharedTicketKeys{(*ticketPage)(unsafe.Pointer(&memory[:SharedTicketKeysSize][0]))}
}

// Keys returns the keys, newest first. It returns nil if there are no keys, or if other processes keep changing the
// keys while it reads them.
func (s *SharedTicketKeys) Keys() (keys []TicketKey) {
	for range maxTicketReads {
		version := s.page.version.Load()
		if version%2 == 0 {
			keys = s.readKeysUnchecked()
			if s.page.version.Load() == version {
				return keys
			}
		}
		runtime.Gosched()
	}
	return nil
}

func (s *SharedTicketKeys) readKeysUnchecked() (keys []TicketKey) {
	for i := range s.page.keys {
		from := &s.page.keys[i]
		made := from.made.Load()
		if made == 0 {
			break
		}
		var key []byte
		for j := range from.key {
			key = binary.LittleEndian.AppendUint64(key, from.key[j].Load())
		}
		keys = append(keys, TicketKey{key, time.Unix(0, made)})
	}
	return keys
}

// RenewIfDueAndGet returns the keys, newest first. If the newest key is a day old, it first adds a new key. If it
// cannot read or change the shared keys, it returns a new key that is not shared.
func (s *SharedTicketKeys) RenewIfDueAndGet(now time.Time) []TicketKey {
	for range maxTicketReads {
		version := s.page.version.Load()
		keys := s.Keys()
		if len(keys) > 0 && now.Sub(keys[0].Made) < ticketKeyUse {
			return keys
		}
		if keys == nil && version%2 != 0 {
			break // Keys has made all attempts
		}
		keys = dropExpiredAndAddKeyIfDue(keys, now)
		if version%2 != 0 || !s.page.version.CompareAndSwap(version, version+1) {
			continue // another process has renewed them
		}
		s.writeKeysUnchecked(keys)
		s.page.version.Store(version + 2)
		return keys
	}
	return dropExpiredAndAddKeyIfDue(nil, now)
}

// SetInitialKeys stores keys, newest first, in the shared memory. Call it before other processes use the memory.
func (s *SharedTicketKeys) SetInitialKeys(keys []TicketKey) {
	valid := keys[:0:0]
	for _, k := range keys {
		if len(k.Key) == ticketKeySize {
			valid = append(valid, k)
		}
	}
	s.writeKeysUnchecked(valid[:min(len(valid), MaxTicketKeys)])
}

func (s *SharedTicketKeys) writeKeysUnchecked(keys []TicketKey) {
	for i := range s.page.keys {
		to := &s.page.keys[i]
		if i >= len(keys) {
			to.made.Store(0)
			continue
		}
		for j := range to.key {
			to.key[j].Store(binary.LittleEndian.Uint64(keys[i].Key[8*j:]))
		}
		to.made.Store(keys[i].Made.UnixNano())
	}
}

func deriveTicketKeys(shared []TicketKey, listenerNumber int) (keys []TicketKey) {
	for _, k := range shared {
		derived, err := hkdf.Expand(sha256.New, k.Key, "myriad session tickets, listener "+strconv.Itoa(listenerNumber), ticketKeySize)
		if err != nil {
			panic(err) // the length is valid
		}
		keys = append(keys, TicketKey{derived, k.Made})
	}
	return keys
}
