package myriad

import "github.com/myriad-go/myriad/internal/sock"

func init() {
	if sock.PrivateTables() == nil {
		shardConns = sock.MaxConns() + 1
	}
}
