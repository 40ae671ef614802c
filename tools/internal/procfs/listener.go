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

// Limits of a search for listening processes.
const (
	// maxRows limits the rows that are read from a table of sockets.
	maxRows = 4 << 20
	// maxScannedDescriptors limits the scanned descriptors of one process. maxScannedInAll limits those of all
	// processes, and again those of all threads.
	maxScannedDescriptors = 16 << 10
	maxScannedInAll       = 256 << 10
	// maxScannedPerThread limits the scanned descriptors of a thread with its own descriptor table.
	maxScannedPerThread = 1 << 10
)

var errRows = errors.New("too many sockets to search")

var errNobody = errors.New("no process in this network namespace listens at this address")

// FindListenerPIDs returns the IDs of the processes that listen on a TCP port of this machine, in ascending order. addr
// must be an address of this machine. If a socket is bound to exactly this address, sockets that are bound to the
// wildcard address are ignored.
//
// FindListenerPIDs returns an error if it finds no process. It cannot find processes of another user, network namespace
// or process namespace.
//
// A search takes about 10 ms with a hundred processes. It first scans the descriptor tables of processes: at most
// 16,384 descriptors of each process, and 262,144 descriptors in total. If it does not find the socket, it scans
// threads that have their own descriptor table, again at most 262,144 descriptors in total.
func FindListenerPIDs(port uint16, addr netip.Addr) ([]int, error) {
	name := netip.AddrPortFrom(addr, port).String()
	queues, err := sock.ListAcceptQueues()
	if err != nil {
		return nil, fmt.Errorf("procfs: listener at %s: %w", name, err)
	}
	var best int
	var inodes []string
	for _, q := range queues {
		fit := addrMatchRankOrZero(q.Addr.Addr(), addr.Unmap())
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

// FindUnixListenerPIDs is like FindListenerPIDs, but for a unix socket. path is the path of the socket, or "@name" for
// an abstract socket. If the server passed a relative path to bind(2), path must be exactly this relative path.
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

func findUnixListenerInode(path, absolutePath string) (oneInodeOrNone []string, _ error) {
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

// parseListeningUnixRow parses a row of /proc/net/unix such as
//
//	00000000b5284930: 00000002 00000000 00010000 0001 01 1073 /run/a b.sock
//
// It returns the inode and the path of a listening socket, or "" for other rows.
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

// addrMatchRankOrZero returns how well the address of a listening socket matches the dialed address. A higher number is
// a better match, and 0 means no match.
func addrMatchRankOrZero(bound, dialed netip.Addr) int {
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

func findSocketOwnerPIDs(addrForErrors string, inodes []string) ([]int, error) {
	if len(inodes) == 0 {
		return nil, fmt.Errorf("procfs: listener at %s: %w", addrForErrors, errNobody)
	}
	links := make(map[string]bool, len(inodes))
	for _, inode := range inodes {
		links["socket:["+inode+"]"] = true
	}
	all, err := allProcesses()
	if err != nil {
		return nil, fmt.Errorf("procfs: listener at %s: %w", addrForErrors, err)
	}
	s := socketOwnerSearch{links: links}
	for _, look := range []func(int){s.searchMainDescriptorTable, s.searchOwnTablesOfThreads} {
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
	return nil, fmt.Errorf("procfs: listener at %s: process not found; this user has no permission to inspect %d processes", addrForErrors, s.denied)
}

type socketOwnerSearch struct {
	links  map[string]bool
	left   int // how many descriptors may still be scanned
	pids   []int
	denied int // number of processes that this process may not inspect
}

func (s *socketOwnerSearch) searchMainDescriptorTable(pid int) {
	if _, err := s.searchDescriptorDirUpToLimit(fmt.Sprintf("/proc/%d/fd/", pid), pid, maxScannedDescriptors); errors.Is(err, fs.ErrPermission) {
		s.denied++
	}
}

func (s *socketOwnerSearch) searchOwnTablesOfThreads(pid int) {
	owners, _ := threadsWithOwnDescriptorTable(pid) // without permission, or if the process has ended, there are none
	for _, t := range owners {
		if found, _ := s.searchDescriptorDirUpToLimit(fmt.Sprintf("/proc/%d/task/%d/fd/", pid, t.PID), pid, maxScannedPerThread); found {
			break
		}
	}
}

func (s *socketOwnerSearch) searchDescriptorDirUpToLimit(dir string, pid, maxDescriptors int) (found bool, err error) {
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
