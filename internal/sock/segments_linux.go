package sock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of struct tcp_info the kernel has counted segments with data since Linux 4.6.
const (
	inodeAt    = diagMessage - 4
	dataIn     = int(unsafe.Offsetof(unix.TCPInfo{}.Data_segs_in))
	dataOut    = int(unsafe.Offsetof(unix.TCPInfo{}.Data_segs_out))
	dataBehind = max(dataIn, dataOut) + 4
)

// SegmentsOf adds up the segments of the connections that have a local port, whatever
// their address, in the network namespace of the calling thread. It goes through every
// TCP socket there. More connections than most are not counted: then it fails.
func SegmentsOf(port uint16, most int) (all Segments, err error) {
	err = eachTalk(port, func(m []byte) error {
		if binary.NativeEndian.Uint32(m[inodeAt:]) == 0 {
			return nil // nobody has accepted it
		}
		if all.Sockets++; all.Sockets > most {
			return fmt.Errorf("more than %d connections of port %d", most, port)
		}
		info := attribute(m[diagMessage:], diagInfo)
		if len(info) < dataBehind {
			return errors.New("the kernel does not count segments with data")
		}
		all.In += int64(binary.NativeEndian.Uint32(info[dataIn:]))
		all.Out += int64(binary.NativeEndian.Uint32(info[dataOut:]))
		return nil
	})
	if err != nil {
		return Segments{}, err
	}
	return all, nil
}
