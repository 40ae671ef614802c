package engine

// Bits of Conn.state. OnClosed and ResetFailedDial clear all bits.
//
//	bit              meaning                                       set by | cleared by
//	open             established, not closed                       OnOpen
//	dialled          this process dialled                          OnOpen
//	sourceCounted    counted among the connections of its source   OnOpen, AdmitProxiedPeerOrAppendRefusal
//	ownHandler       userData is a ConnHandler                     SetConnHandler
//	handshaking      a layer's handshake is in progress            OnOpen, RequestLayerInsertion | OnHandshakeDone
//	openPending      a worker must call Opened                     OnOpen, OnHandshakeDone | MakeDeferredHandlerCalls
//	inCall           the handler is being called                   each call | its return
//	neverHeard       the peer has sent nothing yet                 OnOpen, OnHandshakeDone | OnRead
//	inputHeld        buffered input waits until a worker runs,     OnRead, MakeDeferredHandlerCalls | MakeDeferredHandlerCalls
//	                 output is sent, or SetReading is called
//	readPaused       the handler or a relay wants no input         SetReading, relay | SetReading
//	overHighWater    unsent output has exceeded HighWater and      Write | OnSent
//	                 not fallen to LowWater since
//	blocked          the kernel does not take output               OnSent, OnSendStarted | OnSent, OnWritable
//	drainedPending   Drained or Missed is pending                  OnSent | MakeDeferredHandlerCalls
//	drainingPending  Draining is pending                           BeginShutdownDrain | MakeDeferredHandlerCalls
//	draining         close at the next idle moment                 BeginShutdownDrain
//	finalReadPending read once more before closing for a           CheckTimeouts, BeginShutdownDrain | OnRead,
//	                 timeout or a drain                            CloseIfTimedOutAfterEmptyRead
//	relayed          in a relay                                    relay
//	peerEOF          the peer sends no more                        OnEOF
//	eofDelivered     the handler or partner knows of the EOF       MakeDeferredHandlerCalls | relay
//	closingWrite     shut the write side when all output is sent   CloseWrite
//	yielded          buffered input waits for a later iteration    YieldInput | ClearYield, MakeDeferredHandlerCalls
//	closing          no more input is passed on; see closeReason   CloseWith
//	shut             the write side is shut                        MarkWriteShutAndStartLinger
//	failed           close immediately                             Abort, OnTransportError
//
// The remaining bits count the peer's unanswered heartbeats, up to 255.
//
// While loop.Busy is set in Conn.DriverFlags, a worker owns the connection, including Conn.state.
const (
	open uint32 = 1 << iota
	dialled
	sourceCounted
	ownHandler
	handshaking
	openPending
	inCall
	neverHeard
	inputHeld
	readPaused
	overHighWater
	blocked
	drainedPending
	drainingPending
	draining
	finalReadPending
	relayed
	peerEOF
	eofDelivered
	closingWrite
	closing
	shut
	failed
	yielded

	oneUnanswered  = 1 << 24 // one heartbeat
	unansweredMask = 0xff * oneUnanswered
)

func (c *Conn) is(bits uint32) bool { return c.state&bits != 0 }
