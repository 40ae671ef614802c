package procfs

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/sock"
)

// The limits of a search for listening processes.
const (
	// maxRows bounds the rows that are read of a table of sockets.
	maxRows = 4 << 20
	// maxScannedDescriptors bounds the descriptors that are looked at of one process:
	// listeners are opened early, so their numbers are low. maxScannedInAll
	// bounds them for all processes; each takes about a microsecond.
	maxScannedDescriptors = 16 << 10
	maxScannedInAll       = 256 << 10
	// maxScannedPerThread bounds those that are looked at of a thread that has a
	// table of its own: no more than a few hundred of those are no connections.
	maxScannedPerThread = 1 << 10
)

// errRows means that a table was not read to its end.
var errRows = errors.New("more rows than are read")

// errNobody means that no process listens.
var errNobody = errors.New("no process of this network namespace listens there")

// FindListenerPIDs returns the processes that listen on a TCP port of this machine, in ascending
// order: those with a descriptor of a socket listening at addr or, if there is none, at the
// wildcard address, as the kernel chooses. There can be several: a group that has inherited the
// socket, or one with SO_REUSEPORT.
//
// addr must be an address of this machine; for others it would find a listener at the wildcard. It
// fails if nobody listens, if the processes belong to another user or to another network or process
// namespace, and for sockets beyond the first 16,384 descriptors of a process. It takes some 10 ms
// with a hundred processes and scans at most 262,144 descriptors, and as many again of threads,
// which can have their own table, if no process has one.
func FindListenerPIDs(port uint16, addr netip.Addr) ([]int, error) {
	name := netip.AddrPortFrom(addr, port).String()
	queues, err := sock.ListAcceptQueues()
	if err != nil {
		return nil, fmt.Errorf("procfs: listener at %s: %w", name, err)
	}
	var best int
	var inodes []string
	for _, q := range queues {
		fit := addrMatchRank(q.Addr.Addr(), addr.Unmap())
		if q.Addr.Port() != port || fit == 0 || fit < best {
			continue
		}
		if fit > best {
			best, inodes = fit, nil
		}
		inodes = append(inodes, strconv.FormatUint(uint64(q.Inode), 10))
	}
	return findSocketOwnerPIDs(name, inodes)
}

// FindUnixListenerPIDs is FindListenerPIDs for a unix socket, by the path to which it was bound; "@name"
// is an abstract one. A socket bound to a relative path is found by that path only.
func FindUnixListenerPIDs(path string) ([]int, error) {
	whole := path
	if !strings.HasPrefix(path, "@") {
		if abs, err := filepath.Abs(path); err == nil {
			whole = abs
		}
	}
	inode, err := findUnixListenerInode(path, whole)
	if err != nil {
		return nil, fmt.Errorf("procfs: listener at %s: %w", path, err)
	}
	return findSocketOwnerPIDs(path, inode)
}

// findUnixListenerInode returns the socket that listens at one of two paths, nil for none.
func findUnixListenerInode(path, absolutePath string) ([]string, error) {
	f, err := openFileOnLinux("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows := bufio.NewScanner(f)
	for left := maxRows; rows.Scan(); left-- {
		if left == 0 {
			return nil, errRows
		}
		if inode, at := parseListeningUnixRow(rows.Text()); at != "" && (at == path || at == absolutePath) {
			return []string{inode}, nil
		}
	}
	return nil, rows.Err()
}

// parseListeningUnixRow returns the inode and the path of a row of /proc/net/unix that listens, such as
//
//	00000000b5284930: 00000002 00000000 00010000 0001 01 1073 /run/a b.sock
//
// The path can hold spaces, at the first of which prometheus/procfs cuts it off; it is ""
// for any other row.
func parseListeningUnixRow(row string) (inode, path string) {
	const accepts = 1 << 16 // __SO_ACCEPTCON
	fields := strings.Fields(row)
	if len(fields) < 8 {
		return "", ""
	}
	if flags, err := strconv.ParseUint(fields[3], 16, 32); err != nil || flags&accepts == 0 {
		return "", ""
	}
	_, path, _ = strings.Cut(row, " "+fields[6]+" ")
	return fields[6], strings.TrimRight(path, " ")
}

// addrMatchRank returns how well a socket bound to an address matches connections to another, 0 for
// no match: the exact address first, then the wildcard of its family, then that of IPv6.
func addrMatchRank(bound, dialed netip.Addr) int {
	switch {
	case bound == dialed:
		return 3
	case bound.IsUnspecified() && bound.Is4() == dialed.Is4():
		return 2
	case bound.IsUnspecified() && bound.Is6():
		return 1
	}
	return 0
}

// findSocketOwnerPIDs returns the processes that have a descriptor of one of the sockets.
func findSocketOwnerPIDs(addrText string, inodes []string) ([]int, error) {
	if len(inodes) == 0 {
		return nil, fmt.Errorf("procfs: listener at %s: %w", addrText, errNobody)
	}
	links := make(map[string]bool, len(inodes))
	for _, inode := range inodes {
		links["socket:["+inode+"]"] = true
	}
	all, err := allProcesses()
	if err != nil {
		return nil, fmt.Errorf("procfs: listener at %s: %w", addrText, err)
	}
	s := socketOwnerSearch{links: links}
	for _, look := range []func(int){s.searchProcessDescriptors, s.searchOwnTablesOfThreads} {
		s.left = maxScannedInAll
		for _, p := range all {
			if s.left > 0 {
				look(p.PID)
			}
		}
		if len(s.pids) > 0 {
			return s.pids, nil
		}
	}
	return nil, fmt.Errorf("procfs: listener at %s: its process was not found; %d processes may not be looked at by this user", addrText, s.denied)
}

// socketOwnerSearch looks for the processes that have one of the links.
type socketOwnerSearch struct {
	links  map[string]bool
	left   int // remaining descriptors to scan
	pids   []int
	denied int // processes without permission
}

// searchProcessDescriptors looks at the descriptors of a process up to the first that fits.
func (s *socketOwnerSearch) searchProcessDescriptors(pid int) {
	if _, err := s.searchDescriptorDir(fmt.Sprintf("/proc/%d/fd/", pid), pid, maxScannedDescriptors); errors.Is(err, fs.ErrPermission) {
		s.denied++
	}
}

// searchOwnTablesOfThreads looks at the descriptors of those threads of a process that have a table of
// their own, up to the first that fits.
func (s *socketOwnerSearch) searchOwnTablesOfThreads(pid int) {
	owners, _ := threadsWithOwnTable(pid) // a process that can't be looked at, or has ended, has none
	for _, t := range owners {
		if found, _ := s.searchDescriptorDir(fmt.Sprintf("/proc/%d/task/%d/fd/", pid, t.PID), pid, maxScannedPerThread); found {
			break
		}
	}
}

// searchDescriptorDir looks at up to maxDescriptors descriptors of a table, until one fits.
func (s *socketOwnerSearch) searchDescriptorDir(dir string, pid, maxDescriptors int) (found bool, err error) {
	for fd, err := range dirEntryNames(dir) {
		if err != nil || maxDescriptors == 0 || s.left == 0 {
			return false, err
		}
		maxDescriptors--
		s.left--
		if link, err := os.Readlink(dir + fd); err == nil && s.links[link] {
			s.pids = append(s.pids, pid)
			return true, nil
		}
	}
	return false, nil
}
