package procfs

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The bounds of a search for who listens.
const (
	// maxRows bounds the rows that are read of a table of sockets.
	maxRows = 4 << 20
	// maxLooked bounds the descriptors that are looked at of one process:
	// listeners are opened early, so their numbers are low. maxLookedInAll
	// bounds them for all processes; each takes about a microsecond.
	maxLooked      = 16 << 10
	maxLookedInAll = 256 << 10
	// maxLookedThread bounds those that are looked at of a thread that has a
	// table of its own: no more than a few hundred of those are no connections.
	maxLookedThread = 1 << 10
)

// errRows says that a table was not read to its end.
var errRows = errors.New("more rows than are read")

// errNobody says that nothing listens.
var errNobody = errors.New("no process of this network namespace listens there")

// Listener returns the processes that listen on a TCP port of this machine, in
// ascending order: those that have a descriptor of a socket that listens at addr
// or, where none does, at the wildcard address, as the kernel chooses. They can
// be several: a group that has inherited the socket, or one with SO_REUSEPORT.
//
// addr is to be an address of this machine: of any other address it would find
// who listens at the wildcard. It fails if nobody listens, if the processes belong
// to another user, or are in another network or process namespace, and for a
// socket among the descriptors of a process after the first 16,384. It takes some
// 10 ms where there are a hundred processes, and looks at 262,144
// descriptors at most. Where no process has such a descriptor it looks at so many
// once more, those of threads, which can have a table of their own.
func Listener(port uint16, addr netip.Addr) ([]int, error) {
	name := netip.AddrPortFrom(addr, port).String()
	var found listening
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		err := eachLine(table, maxRows, func(line string) (more bool) {
			s, ok := parseTCP(line)
			if ok && s.state != listens {
				return false // the kernel lists those that listen first
			}
			if ok && s.at.Port() == port {
				found.add(rank(s.at.Addr(), addr.Unmap()), s.inode)
			}
			return true
		})
		// Without IPv6 there is no second table.
		if err != nil && !Gone(err) {
			return nil, fmt.Errorf("procfs: listener at %s: %w", name, err)
		}
	}
	return owners(name, found.inodes)
}

// UnixListener is Listener for a unix socket, by the path that it was bound to;
// "@name" is an abstract one. One that was bound to a relative path is found by
// that path only.
func UnixListener(path string) ([]int, error) {
	whole := path
	if !strings.HasPrefix(path, "@") {
		if abs, err := filepath.Abs(path); err == nil {
			whole = abs
		}
	}
	var inodes []string
	err := eachLine("/proc/net/unix", maxRows, func(line string) (more bool) {
		if s, ok := parseUnix(line); ok && s.listens && (s.path == path || s.path == whole) {
			inodes = append(inodes, s.inode)
		}
		return len(inodes) == 0
	})
	if err != nil {
		return nil, fmt.Errorf("procfs: listener at %s: %w", path, err)
	}
	return owners(path, inodes)
}

// listening collects the sockets that fit best.
type listening struct {
	rank   int
	inodes []string
}

func (l *listening) add(rank int, inode string) {
	if rank > l.rank {
		l.rank, l.inodes = rank, nil
	}
	if rank > 0 && rank == l.rank {
		l.inodes = append(l.inodes, inode)
	}
}

// rank is how well a socket that is bound to an address fits connections to
// another, 0 for not at all: first the very address, then the wildcard of its
// family, then that of IPv6 for both.
func rank(bound, to netip.Addr) int {
	switch {
	case bound == to:
		return 3
	case bound.IsUnspecified() && bound.Is4() == to.Is4():
		return 2
	case bound.IsUnspecified() && bound.Is6():
		return 1
	}
	return 0
}

// owners are the processes that have a descriptor of one of the sockets.
func owners(name string, inodes []string) ([]int, error) {
	if len(inodes) == 0 {
		return nil, fmt.Errorf("procfs: listener at %s: %w", name, errNobody)
	}
	links := make(map[string]bool, len(inodes))
	for _, inode := range inodes {
		links["socket:["+inode+"]"] = true
	}
	s := search{links: links}
	for _, look := range []func(string) error{s.process, s.ofThreads} {
		s.left = maxLookedInAll
		if err := eachName("/proc", look); err != nil && !errors.Is(err, errEnough) {
			return nil, fmt.Errorf("procfs: listener at %s: %w", name, err)
		}
		if len(s.pids) > 0 {
			break
		}
	}
	if len(s.pids) == 0 {
		return nil, fmt.Errorf("procfs: listener at %s: its process was not found; %d processes may not be looked at by this user", name, s.denied)
	}
	slices.Sort(s.pids)
	return s.pids, nil
}

// errEnough ends a walk over names.
var errEnough = errors.New("enough")

// search looks for the processes that have one of the links.
type search struct {
	links  map[string]bool
	left   int // descriptors that may be looked at yet
	pids   []int
	denied int // processes that may not be looked at
}

// process looks at the descriptors of a process up to the first that fits.
func (s *search) process(name string) error {
	pid, err := strconv.Atoi(name)
	if err != nil {
		return nil // not a process
	}
	if _, err = s.table("/proc/"+name+"/fd/", pid, maxLooked); errors.Is(err, fs.ErrPermission) {
		s.denied++
	}
	if s.left == 0 {
		return errEnough
	}
	return nil
}

// ofThreads looks at the descriptors of those threads of a process that have a
// table of their own, up to the first that fits.
func (s *search) ofThreads(name string) error {
	pid, err := strconv.Atoi(name)
	if err != nil {
		return nil
	}
	tables, _ := ReadTables(pid) // a process that can't be looked at, or has ended, has none
	for _, t := range tables {
		if s.left == 0 {
			return errEnough
		}
		if t.Thread == pid {
			continue
		}
		if found, _ := s.table(fmt.Sprintf("/proc/%d/task/%d/fd/", pid, t.Thread), pid, maxLookedThread); found {
			break
		}
	}
	return nil
}

// table looks at so many descriptors of a table, up to the first that fits.
func (s *search) table(dir string, pid, most int) (found bool, err error) {
	looked := 0
	err = eachName(dir, func(fd string) error {
		if looked == most || s.left == 0 {
			return errEnough
		}
		looked++
		s.left--
		link, err := readLink(dir + fd)
		if found = err == nil && s.links[link]; found {
			s.pids = append(s.pids, pid)
			return errEnough
		}
		return nil
	})
	return found, err
}

// listens is the state of a TCP socket that listens (TCP_LISTEN).
const listens = 0x0A

// tcpSocket is a row of /proc/net/tcp or tcp6.
type tcpSocket struct {
	at    netip.AddrPort // IPv4 also where it is mapped into IPv6
	state uint8
	inode string
}

// parseTCP parses a row such as
//
//	0: 0100007F:2328 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1077 1 …
//
// It says false for the heading and for anything else.
func parseTCP(line string) (tcpSocket, bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 || !isNumber(fields[9]) {
		return tcpSocket{}, false
	}
	host, port, ok := strings.Cut(fields[1], ":")
	addr, known := parseHexAddr(host)
	p, err := strconv.ParseUint(port, 16, 16)
	state, err2 := strconv.ParseUint(fields[3], 16, 8)
	if !ok || !known || err != nil || err2 != nil {
		return tcpSocket{}, false
	}
	return tcpSocket{netip.AddrPortFrom(addr, uint16(p)), uint8(state), fields[9]}, true
}

// parseHexAddr parses an address as the kernel writes it: each 32 bits of its
// bytes as one hexadecimal number in the machine's order.
func parseHexAddr(text string) (netip.Addr, bool) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(b); i += 4 {
		word := binary.BigEndian.Uint32(b[i:])
		if littleEndian {
			word = bits.ReverseBytes32(word)
		}
		binary.BigEndian.PutUint32(b[i:], word)
	}
	addr, ok := netip.AddrFromSlice(b)
	return addr.Unmap(), ok
}

// littleEndian is the machine's order of bytes.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// accepts is the flag of a unix socket that listens (__SO_ACCEPTCON).
const accepts = 1 << 16

// unixSocket is a row of /proc/net/unix.
type unixSocket struct {
	listens     bool
	inode, path string
}

// parseUnix parses a row such as
//
//	00000000b5284930: 00000002 00000000 00010000 0001 01 1073 /run/a b.sock
//
// The path can hold spaces. It says false for rows without one, for the heading
// and for anything else.
func parseUnix(line string) (unixSocket, bool) {
	rest, fields := line, [7]string{}
	for i := range fields {
		var ok bool
		if fields[i], rest, ok = strings.Cut(strings.TrimLeft(rest, " "), " "); !ok {
			return unixSocket{}, false
		}
	}
	flags, err := strconv.ParseUint(fields[3], 16, 32)
	if err != nil || !isNumber(fields[6]) || rest == "" {
		return unixSocket{}, false
	}
	return unixSocket{listens: flags&accepts != 0, inode: fields[6], path: rest}, true
}

func isNumber(text string) bool {
	_, err := strconv.ParseUint(text, 10, 64)
	return err == nil
}
