//! Attaching to the daemon: maps what it hands out, and puts the services of a client together.

use crate::access_sampling::AccessSampling;
use crate::caller::groups_for_good;
use crate::connection_state::ConnectionState;
use crate::daemon_link::DaemonLink;
use crate::errno::{Errno, Result, device, proto, refusal, volume};
use crate::kernel_refs::KernelRefs;
use crate::lease::Leases;
use crate::log::benefit_model::{BenefitModel, LineCosts};
use crate::log::client_log::ClientLog;
use crate::log::requests::Requests;
use crate::lower_tiers::block_cache::BlockCache;
use crate::lower_tiers::direct_device_read::FlashDevices;
use crate::lower_tiers::lower_blocks::LowerBlocks;
use crate::options::{SessionMaps, SessionOptions};
use crate::read_section;
use crate::services::Services;
use crate::space::granted_space::GrantedSpace;
use crate::space::grants::InodeNumbers;
use crate::volume_reader::VolumeReader;
use shale_format::{Buffering, Durability};
use shale_nvm::{Access, Map, MapOptions, Piece, SharedWords};
use shale_oplog::Recent;
use shale_proto::message::{Attached, PROTO_VERSION};
use shale_proto::shared_pages::{client_page, daemon_page};
use shale_proto::{Channel, Reply, Request};
use shale_sys::clock::Clock;
use shale_volume::View;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Attaches to the daemon behind `channel`, with maps made as `maps` says. `recent`: requests that were done before a crash (empty for a
/// new client). Errors: what the daemon refuses with; `EMFILE`: this process has no numbers for the descriptors; `ENOMEM`; `EIO`.
pub fn attach(
    channel: Arc<dyn Channel>,
    (clock, recent): (Arc<dyn Clock>, Recent),
    options: SessionOptions,
    maps: &SessionMaps,
) -> Result<Services> {
    read_section::register_barriers();
    let ask = Request::Attach {
        version: PROTO_VERSION,
        log_bytes: options.log_bytes,
        durability: options.durability.map_or(0, |policy| policy as u8),
    };
    let (reply, fds) = channel.call(ask).map_err(|e| proto(&e))?;
    let attached = match reply {
        Reply::Attached(a) => a,
        other => return Err(refusal(&other)),
    };
    let mut fds = fds.into_iter();
    let mut map = |options: &MapOptions, bytes: usize, access| -> Result<Arc<Map>> {
        // The kernel leaves out what this process has no numbers for.
        let fd = fds.next().ok_or(Errno::MFILE)?;
        let opened = options.open(vec![Piece { fd, bytes }], access);
        Ok(Arc::new(opened.map_err(|e| device(&e))?))
    };
    let plain = MapOptions::new();
    let log_bytes = attached.ring_bytes as usize + shale_format::log::RING_AT;
    let slowed = |options: &MapOptions| options.clone().named_model(attached.nvm_model.as_deref());
    // Memory is as fast as it is.
    let log_options = match attached.buffered {
        true => maps.buffer.clone().volatile(),
        false => slowed(&maps.log),
    };
    let log = map(&log_options, log_bytes, Access::ReadWrite)?;
    if options.present {
        log.populate().map_err(|e| device(&e))?;
    }
    let daemon_page = map(&plain, daemon_page::BYTES, Access::ReadOnly)?;
    let client_page = map(&maps.client_page, client_page::BYTES, Access::ReadWrite)?;
    let nvm_log = attached
        .buffered
        .then(|| map(&slowed(&maps.log), log_bytes, Access::ReadWrite))
        .transpose()?;
    let fsync_copies =
        Durability::from_number(attached.durability).is_none_or(Durability::fsync_waits);
    if let Some(nvm_log) = nvm_log.as_ref().filter(|_| options.present && fsync_copies) {
        nvm_log.populate().map_err(|e| device(&e))?;
    }
    let first = fds.collect();
    let nvm = map_segments(channel.as_ref(), &attached, first, &slowed(&maps.nvm))?;
    let nvm = Arc::new(nvm);
    let given = Given {
        channel,
        nvm,
        log,
        nvm_log,
        daemon_page,
        client_page,
    };
    services(given, &attached, (clock, recent), options)
}

/// What the daemon has handed out, mapped.
struct Given {
    channel: Arc<dyn Channel>,
    nvm: Arc<Map>,
    log: Arc<Map>,
    /// Of a buffered client: its log in NVM.
    nvm_log: Option<Arc<Map>>,
    daemon_page: Arc<Map>,
    client_page: Arc<Map>,
}

/// Puts the services of a client together.
fn services(
    given: Given,
    attached: &Attached,
    (clock, recent): (Arc<dyn Clock>, Recent),
    options: SessionOptions,
) -> Result<Services> {
    let Given {
        channel,
        nvm,
        log: log_map,
        nvm_log,
        daemon_page,
        client_page,
    } = given;
    let page = || SharedWords::new(client_page.clone());
    let daemon = DaemonLink::new(channel, daemon_page.clone());
    let connection = || {
        let log = SharedWords::new(log_map.clone());
        ConnectionState::new(SharedWords::new(daemon_page.clone()), log)
    };
    let policy = Durability::from_number(attached.durability).unwrap_or_default();
    let nvm_log = nvm_log.map(|nvm| {
        let measured = || LineCosts::measure(&log_map, &nvm);
        let costs = options.line_costs.unwrap_or_else(measured);
        let buffering = Buffering::from_number(attached.buffering).unwrap_or_default();
        let buffering = match buffering {
            // An fsync that copies nothing makes no block eager.
            Buffering::Model if !policy.fsync_waits() => Buffering::Lazy,
            chosen => chosen,
        };
        (
            nvm,
            BenefitModel::new(buffering, costs, attached.ring_bytes),
        )
    });
    let log = ClientLog::new(
        (log_map.clone(), nvm_log),
        (client_page.clone(), clock.clone()),
        (daemon.clone(), connection()),
        Requests::new(recent),
        (attached.ring_bytes, options.present),
        (policy, attached.staged, options.hardens_later),
    )?;
    let (view, _) = View::open(nvm.clone()).map_err(|e| volume(&e))?;
    let cache = Arc::new(BlockCache::default());
    let flash = FlashDevices::new(daemon.clone(), client_page.clone());
    let volume = VolumeReader::new(
        view.with_block_source(cache.clone()),
        nvm.clone(),
        log.content(),
        LowerBlocks::new(cache, flash, daemon.clone()),
        AccessSampling::new(page(), daemon.clone()),
    );
    // What a buffered client writes stays in memory until it is copied, but for blocks that are eager.
    let in_place = attached.may_steal && !options.log_all;
    let in_place = (
        in_place && !attached.buffered,
        in_place && attached.buffered,
    );
    Ok(Services {
        client: attached.client,
        open_token: attached.open_token,
        groups: attached.groups.as_deref().map(groups_for_good),
        options,
        clock,
        sections: page(),
        page: client_page.clone(),
        connection: connection(),
        volume,
        leases: Leases::new(daemon.clone(), page()),
        kernel: KernelRefs::default(),
        numbers: InodeNumbers::new(daemon.clone()),
        space: GrantedSpace::new(daemon.clone(), connection(), nvm, in_place),
        log,
        daemon,
    })
}

/// Maps the segments, of which `first` are there.
fn map_segments(
    channel: &dyn Channel,
    attached: &Attached,
    first: Vec<OwnedFd>,
    options: &MapOptions,
) -> Result<Map> {
    let mut pieces = Vec::new();
    add_segments(&mut pieces, first, &attached.first_segments)?;
    while pieces.len() < attached.segments as usize {
        let ask = Request::Segments {
            first: pieces.len() as u32,
        };
        let (reply, fds) = channel.call(ask).map_err(|e| proto(&e))?;
        let Reply::Segments { bytes, .. } = reply else {
            return Err(refusal(&reply));
        };
        if bytes.is_empty() {
            return Err(Errno::PROTO);
        }
        add_segments(&mut pieces, fds, &bytes)?;
    }
    let map = options.open(pieces, Access::ReadOnly);
    map.map_err(|e| device(&e))
}

fn add_segments(pieces: &mut Vec<Piece>, fds: Vec<OwnedFd>, bytes: &[u64]) -> Result<()> {
    match fds.len() {
        given if given > bytes.len() => return Err(Errno::PROTO),
        // The kernel leaves out what this process has no numbers for.
        given if given < bytes.len() => return Err(Errno::MFILE),
        _ => {}
    }
    let lengths = bytes.iter().map(|&bytes| bytes as usize);
    let with_lengths = fds.into_iter().zip(lengths);
    pieces.extend(with_lengths.map(|(fd, bytes)| Piece { fd, bytes }));
    Ok(())
}
