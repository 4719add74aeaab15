"""Wrong input of every kind: exit code 2 and one sentence with the field, the expected and the actual value."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Call

# The form of every refusal. A path may hold a planner's name, so it is compared as a whole by the tests.
SENTENCE = re.compile(r"error: (?P<field>[^:]+): expected .+, actual .+")
JARGON = ("Traceback", "Input should", "Tuple", " valid ", "constrained", "literal[", "function-", "None")

# overrides of `tiny` (5 devices on a ring), the field at fault, and words of the sentence
OVERRIDES = [
    # keys that do not exist
    (["nettwork.devices=3"], "nettwork", "did you mean 'network'?"),
    (["sede=1"], "sede", "actual key 'sede'; did you mean 'seed'?"),
    (["source=table"], "source", "actual key 'source'"),
    (["network.devcies=3"], "network.devcies", "did you mean 'devices'?"),
    (["channel.doppler_slot=0.1"], "channel.doppler_slot", "expected one of gain, gains, kernel"),
    (["link.noise=1"], "link.noise", "did you mean 'noise_watt'?"),
    (["energy.capacity=8"], "energy.capacity", "did you mean 'capacity_joule'?"),
    (["energy.power=1"], "energy.power", "actual key 'power'"),
    (
        ["harvest.panel_cm2=5"],
        "harvest.panel_cm2",
        "expected one of cloudy, cloudy_known, forecast, joule, prob, scale, sky, source",
    ),
    (["cost.penalty=1"], "cost.penalty", "did you mean 'idle_penalty'?"),
    (["learning.lr=0.1"], "learning.lr", "expected one of aggregation, allow_divergence, alpha"),
    # overrides that lead nowhere
    (["network.devices"], "--set", "actual value 'network.devices'"),
    (["=3"], "--set", "expected path=value"),
    (["network.=3"], "--set", "expected path=value"),
    (["network.devices.first=3"], "network.devices.first", "at 'network.devices', actual value 5"),
    (["seed.x=3"], "seed.x", "at 'seed', actual value 0"),
    (["network=5"], "network", "expected a table of settings, actual value 5"),
    (["harvest=[1, 2]"], "harvest", "expected a table of settings, actual value [1, 2]"),
    (["channel=true"], "channel", "expected a table of settings, actual value True"),
    # top level
    (["name=5"], "name", "expected text, actual value 5"),
    (["seed=-1"], "seed", "greater than or equal to 0, actual value -1"),
    (["seed=1.5"], "seed", "expected a whole number, actual value 1.5"),
    (["seed=9223372036854775808"], "seed", "less than 9223372036854775808"),
    (["slots=0"], "slots", "greater than or equal to 1, actual value 0"),
    (["slots='ten'"], "slots", "expected a whole number, actual value 'ten'"),
    (["slots=true"], "slots", "expected a whole number, actual value True"),
    (["slots=100000000"], "slots", "less than or equal to 10000000"),
    # network
    (["network.devices=0"], "network.devices", "actual value 0"),
    (["network.devices='5'"], "network.devices", "expected a whole number, actual value '5'"),
    (["network.devices=5.0"], "network.devices", "expected a whole number, actual value 5.0"),
    (["network.devices=false"], "network.devices", "expected a whole number, actual value False"),
    (["network.devices="], "network.devices", "actual value ''"),
    (["network.topology=torus"], "network.topology", "'ring', 'grid', 'geometric'"),
    (["network.topology=3"], "network.topology", "actual value 3"),
    (["network.mixing=uniform"], "network.mixing", "expected 'metropolis' or 'lazy-metropolis'"),
    (["network.allow_disconnected=1"], "network.allow_disconnected", "expected true or false, actual value 1"),
    (["network.link_metre=0"], "network.link_metre", "greater than 0, actual value 0"),
    (["network.link_metre=1e300"], "network.link_metre", "less than or equal to 1000000000"),
    (["network.topology=edges"], "network.edges", "actual value missing"),
    (["network.edges=[[0, 1]]"], "network.edges", "actual topology 'ring'"),
    (["network.topology=edges", "network.edges=[[0, 5]]"], "network.edges.0", "in 0..4, actual value [0, 5]"),
    (["network.topology=edges", "network.edges=[[0, 1], [-1, 2]]"], "network.edges.1", "actual value [-1, 2]"),
    (["network.topology=edges", "network.edges=[[2, 2]]"], "network.edges.0", "two different devices"),
    (["network.topology=edges", "network.edges=[[0, 1, 2]]"], "network.edges.0", "a list of 2 values"),
    (["network.topology=edges", "network.edges=[[0]]"], "network.edges.0.1", "actual value missing"),
    (["network.topology=edges", "network.edges=[[0, 'a']]"], "network.edges.0.1", "a whole number, actual value 'a'"),
    (["network.topology=edges", "network.edges=[0, 1]"], "network.edges.0", "expected a list, actual value 0"),
    (["network.topology=edges", "network.edges='0-1'"], "network.edges", "expected a list, actual value '0-1'"),
    (["network.topology=edges", "network.edges=[[0, 1], [2, 3]]"], "network.topology", "number of components 3"),
    (["network.topology=regular", "network.degree=3"], "network.degree", "is even, actual value 3"),
    (["network.topology=regular", "network.degree=5"], "network.degree", "below network.devices = 5"),
    (["network.topology=regular", "network.degree=1", "network.devices=6"], "network.topology", "connected graph"),
    (["network.topology=grid", "network.rows=2"], "network.rows", "a divisor of network.devices = 5, actual value 2"),
    (["network.topology=grid", "network.rows=0"], "network.rows", "actual value 0"),
    (["network.topology=geometric", "network.max_degree=1"], "network.mean_degree", "network.max_degree = 1"),
    (["network.topology=geometric", "network.mean_degree=-2"], "network.mean_degree", "actual value -2"),
    (["network.topology=complete", "network.devices=100000"], "network.devices", "gives 4999950000"),
    (["network.topology=erdos-renyi", "network.mean_degree=0.1"], "network.mean_degree", "fails in 1000 draws"),
    (
        ["network.topology=erdos-renyi", "network.mean_degree=1e9", "network.devices=100000"],
        "network.devices",
        "gives",
    ),
    (["network.topology=places"], "network.positions_metre", "actual value missing"),
    (["network.places_file=none.csv"], "network.places_file", "expected a readable text file"),
    (["network.places_file=3"], "network.places_file", "expected text, actual value 3"),
    (["network.positions_metre=[[0, 0], [1, 'a']]"], "network.positions_metre.1.1", "a number, actual value 'a'"),
    (
        ["network.positions_metre=[[0, 0], [0, 0]]"],
        "network.positions_metre.1",
        "actual value [0.0, 0.0], where device 0",
    ),
    (["network.positions_metre=[[0, 0], [9000, 0]]"], "network.topology", "number of components 2"),
    (["network.positions_metre=[[0, 0], [9, 0]]", "network.devices=3"], "network.devices", "one per place"),
    (["network.positions_metre=[[0, 0], [9, 0]]", "network.links=budget"], "network.links", "for a link budget"),
    (["network.positions_metre=[[0, 0], [9, 0]]", "network.links=list"], "network.edges", "actual value missing"),
    (["network.links=radius"], "network.links", "actual topology 'ring'"),
    # channel
    (["channel.source=rice"], "channel.source", "expected one of rayleigh, table, actual value 'rice'"),
    (["channel.source=[1]"], "channel.source", "actual value [1]"),
    (["channel.source=table2"], "channel.source", "did you mean 'table'?"),
    (["channel.state=sender"], "channel.state", "'receiver', 'link' or 'reciprocal'"),
    (["channel.source=rayleigh", "channel.levels=0"], "channel.levels", "actual value 0"),
    (["channel.source=rayleigh", "channel.levels=65"], "channel.levels", "less than or equal to 64"),
    (["channel.source=rayleigh", "channel.levels='four'"], "channel.levels", "a whole number"),
    (["channel.source=rayleigh", "channel.doppler_slot=2"], "channel.doppler_slot", "for 4 levels"),
    (["channel.source=rayleigh", "channel.doppler_slot=-0.1"], "channel.doppler_slot", "actual value -0.1"),
    (["channel.gain=0"], "channel.gain", "greater than 0, or a list, actual value 0"),
    (["channel.gain=[1, 1]"], "channel.gain", "a list of 5 (network.devices), actual number of values 2"),
    (["channel.gains=[]"], "channel.gains", "expected a list that is not empty, actual value []"),
    (["channel.gains=1.5"], "channel.gains", "expected a list, actual value 1.5"),
    (["channel.gains=[1.5, 0.3]"], "channel.gains", "rising gains"),
    (["channel.gains=[-0.3, 1.5]"], "channel.gains", "at least 0, actual value [-0.3, 1.5]"),
    (["channel.gains=[0.3, nan]"], "channel.gains.1", "expected a finite number, actual value nan"),
    (["channel.kernel=[[0.8, 0.2], [0.2, 0.7]]"], "channel.kernel.1", "sum to 1, actual sum 0.9"),
    (["channel.kernel=[[0.8, 0.2], [1.2, -0.2]]"], "channel.kernel.1", "lowest value -0.2"),
    (["channel.kernel=[[1.0]]"], "channel.kernel", "expected 2 rows, actual number of rows 1"),
    (["channel.kernel=[[0.8, 0.2], [1.0]]"], "channel.kernel.1", "expected 2 values, actual number of values 1"),
    (["channel.kernel=[]"], "channel.kernel", "not empty"),
    (["channel.kernel=[[0.8, 0.2], []]"], "channel.kernel.1", "not empty"),
    (["channel.kernel=[[0.8, true], [0.2, 0.8]]"], "channel.kernel.0.1", "expected a number, actual value True"),
    # link
    (["link.waterfall=0"], "link.waterfall", "greater than 0, actual value 0"),
    (["link.waterfall=nan"], "link.waterfall", "expected a finite number, actual value nan"),
    (["link.waterfall=inf"], "link.waterfall", "expected a finite number, actual value inf"),
    (["link.waterfall=high"], "link.waterfall", "expected a number, actual value 'high'"),
    (["link.waterfall=true"], "link.waterfall", "expected a number, actual value True"),
    ([f"link.waterfall=1{'0' * 400}"], "link.waterfall", "expected a number, actual value 1000"),
    (["link.error=none"], "link.error", "expected 'waterfall' or 'table', actual value 'none'"),
    (["link.error=table"], "link.table", "expected a CSV file for error 'table', actual value missing"),
    (["link.table=a.csv"], "link.table", "expected no value but with error 'table', actual value 'a.csv'"),
    (["link.error=table", "link.table=absent.csv"], "link.table", "'absent.csv': No such file or directory"),
    (["link.noise_watt=-0.1"], "link.noise_watt", "greater than 0, or a list, actual value -0.1"),
    (["link.noise_watt=[0.1, 0.1, 0, 0.1, 0.1]"], "link.noise_watt.2", "greater than 0, actual value 0"),
    (["link.noise_watt=[0.1, 0.1]"], "link.noise_watt", "actual number of values 2"),
    (["link.half_duplex='yes'"], "link.half_duplex", "expected true or false, actual value 'yes'"),
    (["link.path_loss=okumura"], "link.path_loss", "expected 'none' or 'log-distance'"),
    (["link.loss_at_km_db=-1e9"], "link.loss_at_km_db", "greater than or equal to -1000"),
    # energy
    (["energy.powers_watt=[]"], "energy.powers_watt", "expected a list that is not empty, actual value []"),
    (["energy.powers_watt=[1.0, 2.0]"], "energy.powers_watt", "expected 0 (idle) and then rising powers"),
    (["energy.powers_watt=[0.0, -1.0]"], "energy.powers_watt", "actual value [0.0, -1.0]"),
    (["energy.powers_watt=[0.0, 2.0, 1.0]"], "energy.powers_watt", "rising powers"),
    (["energy.powers_watt=[0.0, '1']"], "energy.powers_watt.1", "expected a number, actual value '1'"),
    (["energy.powers_watt=2.0"], "energy.powers_watt", "expected a list, actual value 2.0"),
    (["energy.transmit_second=2"], "energy.transmit_second", "energy.slot_second = 1, actual value 2"),
    (["energy.transmit_second=bytes"], "energy.transmit_second", "a number, or 'bits', actual value 'bytes'"),
    (["energy.transmit_second=bits"], "energy.bit_per_second", "for transmit_second 'bits', actual value missing"),
    (
        ["energy.transmit_second=bits", "energy.bit_per_second=1e-300"],
        "energy.bit_per_second",
        "actual value 1e-300 takes 1.539e+305 s",
    ),
    (["energy.bit_per_second=0"], "energy.bit_per_second", "greater than 0, actual value 0"),
    (["energy.packet_overhead=-0.5"], "energy.packet_overhead", "greater than or equal to 0, actual value -0.5"),
    (["energy.consumed_watt=[0, 2]"], "energy.consumed_watt", "each of the 3 in energy.powers_watt, actual number"),
    (["energy.consumed_watt=[0, 3, 2]"], "energy.consumed_watt", "0 (idle) and then rising powers"),
    (["energy.consumed_watt=[0, 0.5, 3]"], "energy.consumed_watt.1", "the 1 W that are radiated, actual value 0.5"),
    (["energy.radio=nrf5284"], "energy.radio", "did you mean 'nrf52840'?"),
    (["energy.radio=5"], "energy.radio", "expected one of cc2340r5, esp32, nrf52840, sx1276 or a .toml file, actual"),
    (["energy.radio=absent.toml"], "energy.radio", "'absent.toml': No such file or directory"),
    (["energy.board=pentium"], "energy.board", "expected one of esp32, jetson-nano"),
    (["energy.compute_watt=1"], "energy.compute_second", "beside energy.compute_watt, actual value missing"),
    (["energy.compute_second=1"], "energy.compute_watt", "beside energy.compute_second, actual value missing"),
    (["energy.compute_second=1", "energy.compute_watt=1"], "energy.compute_joule", "actual value 1.0"),
    (["energy.board=esp32", "energy.compute_joule=1"], "energy.compute_joule", "expected no value beside"),
    (["learning.update_bits=0"], "learning.update_bits", "greater than or equal to 1, actual value 0"),
    (["learning.sample_flop=0"], "learning.sample_flop", "greater than 0, actual value 0"),
    (["energy.slot_second=-1"], "energy.slot_second", "actual value -1"),
    (["energy.compute_joule=-1"], "energy.compute_joule", "or a list, actual value -1"),
    (["energy.compute_joule=[1, 1, 1]"], "energy.compute_joule", "actual number of values 3"),
    (["energy.compute_joule=[1, 1, 1, 1, 'x']"], "energy.compute_joule.4", "expected a number, actual value 'x'"),
    (["energy.cpu_hz=[1, 1, -1, 1, 1]"], "energy.cpu_hz.2", "actual value -1"),
    (["energy.capacity_joule=0"], "energy.capacity_joule", "greater than 0"),
    (
        ["energy.storage=lead"],
        "energy.storage",
        "one of ideal, li-ion, nimh, supercapacitor, actual value 'lead'",
    ),
    (["energy.charge_efficiency=0"], "energy.charge_efficiency", "greater than or equal to 0.001"),
    (["energy.charge_efficiency=[1, 1, 1, 1, 1.5]"], "energy.charge_efficiency.4", "less than or equal to 1"),
    (["energy.leak_per_day=1"], "energy.leak_per_day", "less than 1"),
    (["energy.converter_efficiency=1.2"], "energy.converter_efficiency", "less than or equal to 1"),
    (["energy.converter_efficiency=[]"], "energy.converter_efficiency", "a list that is not empty"),
    (["energy.converter_efficiency=[[0, 0.9]]"], "energy.converter_efficiency.0.0", "greater than 0"),
    (["energy.converter_efficiency=[[1, 0.5], [0.5, 0.5]]"], "energy.converter_efficiency", "rising loads"),
    (["energy.converter_efficiency=[[1, 0.5], [1.1, 0.9]]"], "energy.converter_efficiency", "draw more and more"),
    (["energy.converter_efficiency=1e-9"], "energy.converter_efficiency", "greater than or equal to 0.001"),
    (["energy.sleep_watt=-1"], "energy.sleep_watt", "greater than or equal to 0"),
    (["energy.sleep_watt=1e200"], "energy.sleep_watt", "to draw at most"),
    (["energy.listen_second=2"], "energy.listen_second", "energy.slot_second = 1, actual value 2"),
    (["energy.wake_joule=[1, 1]"], "energy.wake_joule", "actual number of values 2"),
    (["energy.capacity_joule=[3, 3, 3, 3, 3, 3]"], "energy.capacity_joule", "actual number of values 6"),
    (["energy.battery_levels=0"], "energy.battery_levels", "actual value 0"),
    (["energy.battery_levels=5000"], "energy.battery_levels", "less than or equal to 4096"),
    (["energy.initial=half"], "energy.initial", "'uniform-grid' or 'uniform', or a number, or a list"),
    (["energy.initial=[1, 1, -1, 1, 1]"], "energy.initial.2", "expected a number greater than or equal to 0, actual"),
    (["energy.initial=[1, 1, true, 1, 1]"], "energy.initial.2", "expected a number, actual value True"),
    (["energy.initial=[]"], "energy.initial", "actual number of values 0"),
    (["energy.initial=3.5"], "energy.initial", "at most energy.capacity_joule = 3, actual value 3.5"),
    (["energy.initial=[1, 1, 1, 1, 4]"], "energy.initial", "actual value 4"),
    (["energy.actions=apart"], "energy.actions", "expected one of coupled, separate, actual value 'apart'"),
    (["energy.train_only=0"], "energy.train_only", "expected true or false, actual value 0"),
    # harvest
    (["harvest.source=wind"], "harvest.source", "actual value 'wind'"),
    (["harvest.source=tabel"], "harvest.source", "did you mean 'table'?"),
    (["harvest.source=5"], "harvest.source", "actual value 5"),
    (["harvest.prob=[0.5, 0.5]"], "harvest.prob", "that is 3, actual number of values 2"),
    (["harvest.prob=[0.5, 0.5, 0.5]"], "harvest.prob", "actual sum 1.5"),
    (["harvest.prob=[1.5, -0.5, 0.0]"], "harvest.prob", "lowest value -0.5"),
    (["harvest.joule=[0.0, -1.0, 2.0]"], "harvest.joule", "energies of at least 0"),
    (["harvest.joule=[0.0, inf, 2.0]"], "harvest.joule.1", "expected a finite number, actual value inf"),
    (["harvest.scale=-1"], "harvest.scale", "actual value -1"),
    (["harvest.scale=[1, 2]"], "harvest.scale", "actual number of values 2"),
    (["harvest.source=markov"], "harvest.kernel", "expected a value, actual value missing"),
    (["harvest.source=trace"], "harvest.joule", "exactly one of harvest.joule and harvest.file"),
    (["harvest.source=trace", "harvest.joule=[1]", "harvest.file=a.txt"], "harvest.joule", "actual number of them 2"),
    (["harvest.source=trace", "harvest.joule=[1, -2]"], "harvest.joule", "actual lowest value -2"),
    (["harvest.source=trace", "harvest.joule=[]"], "harvest.joule", "not empty"),
    (
        ["harvest.source=trace", "harvest.joule=[1]", "harvest.start=-1"],
        "harvest.start",
        "or 'random', actual value -1",
    ),
    (
        ["harvest.source=trace", "harvest.joule=[1]", "harvest.start=dawn"],
        "harvest.start",
        "a whole number, or 'random'",
    ),
    (["harvest.source=trace", "harvest.file=absent.txt"], "harvest.file", "'absent.txt': No such file or directory"),
    (["harvest.source=trace", "harvest.file=."], "harvest.file", "Is a directory"),
    (["harvest.source=trace", 'harvest.file="a\\u0000"'], "harvest.file", "null byte"),
    (["harvest.source=trace", "harvest.file=5"], "harvest.file", "expected text, actual value 5"),
    (["harvest.source=solar", "harvest.month=13"], "harvest.month", "actual value 13"),
    (["harvest.source=solar", "harvest.hours=[18, 6]"], "harvest.hours", "actual value [18.0, 6.0]"),
    (["harvest.source=solar", "harvest.hours=[6]"], "harvest.hours.1", "actual value missing"),
    (["harvest.source=solar", "harvest.efficiency=1.5"], "harvest.efficiency", "at most 1"),
    (["harvest.source=solar", "harvest.data=midc-file"], "harvest.file", "actual value missing"),
    (["harvest.source=solar", "harvest.first_day=soon"], "harvest.first_day", "a date such as 2023-06-01"),
    # cost and learning
    (["cost.idle_penalty=1.5"], "cost.idle_penalty", "less than or equal to 1, actual value 1.5"),
    (["cost.idle_penalty=-0.5"], "cost.idle_penalty", "actual value -0.5"),
    (["cost.objective=learning"], "cost.objective", "expected 'update-loss', actual value 'learning'"),
    (["cost.phases=[[200, 1, 1]]"], "cost.phases", "expected one of deadline, idle_penalty, "),
    (["learning.partition=random"], "learning.partition", "expected 'iid', 'dirichlet', 'shards' or 'indices'"),
    (["learning.batch=0"], "learning.batch", "actual value 0"),
    (["learning.local_steps=2.5"], "learning.local_steps", "expected a whole number, actual value 2.5"),
    (["learning.dataset=true"], "learning.dataset", "expected text, actual value True"),
    (["learning.learning_rate=0"], "learning.learning_rate", "greater than 0"),
    (["learning.quasi_global=1"], "learning.quasi_global", "expected a number less than 1, actual value 1"),
    (["learning.on_air=int4"], "learning.on_air", "expected 'float32', 'float16', 'int8' or 'top-k', actual value"),
    (["learning.top_k_share=0"], "learning.top_k_share", "expected a number greater than 0, actual value 0"),
    (["learning.top_k_share=1.5"], "learning.top_k_share", "less than or equal to 1, actual value 1.5"),
    (["learning.schedule=linear"], "learning.schedule", "expected 'constant', 'cosine', 'inverse' or 'step'"),
    (["learning.final_rate=0"], "learning.final_rate", "greater than 0"),
    (["learning.final_rate=1.5"], "learning.final_rate", "less than or equal to 1, actual value 1.5"),
    (["learning.schedule_slots=0"], "learning.schedule_slots", "actual value 0"),
    (["learning.optimizer=adam", "learning.second_momentum=1"], "learning.second_momentum", "less than 1"),
    (["learning.momentum=0.5"], "learning.momentum", "with learning.optimizer only, since plain SGD has none"),
]

# contents of a scenario file, the field at fault, and words of the sentence
MARKOV = "[harvest]\nsource = 'markov'\nkernel = [[0.9, 0.1], [0.5, 0.5]]\n"
FILES = [
    (b"slots = ", "scenario", "(at end of document)"),
    (b"slots = 3\nslots = 4", "scenario", "Cannot overwrite a value"),
    (b"[network\ndevices = 3", "scenario", "(at line 1"),
    (b"name = '\xff\xfe'", "scenario", "can't decode byte 0xff"),
    (b"seed = 1" + b"0" * 5000, "scenario", "limit"),
    (b"a = " + b"[" * 5000, "scenario", "expected TOML"),
    (b'"a\\nb" = 1', "a b", "expected one of name, seed"),
    (b"network = 3", "network", "expected a table of settings, actual value 3"),
    (b"[[network]]\ndevices = 3", "network", "actual value [{'devices': 3}]"),
    (b"[network]\ndevices = 3\nedge = []", "network.edge", "did you mean 'edges'?"),
    (b"[channel]\nsource = 'table'\ngains = [1.0]", "channel.kernel", "actual value missing"),
    (b"[harvest]\nsource = 'table'\njoules = [1.0]\nprob = [1.0]", "harvest.joules", "did you mean 'joule'?"),
    (b"[harvest]\nsource = 'trace'\nfile = 'absent.txt'", "harvest.file", "absent.txt': No such file"),
    (b"[harvest]\nsource = 'trace'\nfile = 'scenario.toml'", "harvest.file", "in line 1, actual value '[harvest]'"),
    (b"[harvest]\nsource = 'trace'\nfile = 'words.txt'", "harvest.file", "in line 3, actual value 'two'"),
    (b"[harvest]\nsource = 'trace'\nfile = 'infinite.txt'", "harvest.file", "in line 1, actual value '1e999'"),
    (b"[harvest]\nsource = 'trace'\nfile = 'negative.txt'", "harvest.file", "actual lowest value -2"),
    (b"[harvest]\nsource = 'trace'\nfile = 'empty.txt'", "harvest.file", "empty.txt' is empty"),
    (b"[harvest]\nsource = 'trace'\nfile = 'latin.txt'", "harvest.file", "can't decode byte 0xb5"),
    (b"[harvest]\nsource = 'solar'\ndata = 'midc-file'\nfile = 'words.txt'", "harvest.file", "Global"),
    (f"{MARKOV}joule = [[0.0]]\nprob = [[1.0], [1.0]]".encode(), "harvest.joule", "2 rows, one per weather"),
    (f"{MARKOV}joule = [[0.0], [1.0]]\nprob = [[1.0]]".encode(), "harvest.prob", "actual number of rows 1"),
    (f"{MARKOV}joule = [[0.0], [1.0]]\nprob = [[1.0], [0.5, 0.5]]".encode(), "harvest.prob.1", "that is 1, actual"),
    (f"{MARKOV}joule = [[0.0], [1.0]]\nprob = [[1.0], [0.9]]".encode(), "harvest.prob.1", "actual sum 0.9"),
    (f"{MARKOV}joule = [[0.0], [-1.0]]\nprob = [[1.0], [1.0]]".encode(), "harvest.joule.1", "at least 0"),
    (MARKOV.replace("0.9, ", "").encode() + b"joule = [[0.0]]\nprob = [[1.0]]", "harvest.kernel.0", "2 values"),
]
NEIGHBOURS = {  # files beside the scenario
    "words.txt": b"1.0\n\ntwo\n",
    "infinite.txt": b"1e999\n",
    "negative.txt": b"1.0\n-2.0\n",
    "empty.txt": b"\n\n",
    "latin.txt": b"1.0 \xb5J\n",
}

# whole command lines
GEOMETRIC = ["--set", "network.topology=geometric", "--set", "network.devices=30"]
COMMANDS = [
    (["scenario", "show", "tinny"], "scenario", "did you mean 'tiny'?"),
    (["scenario", "show", "absent.toml"], "scenario", "'absent.toml': No such file or directory"),
    (["scenario", "show", "."], "scenario", "expected a .toml file or one of"),
    (["scenario", "show", ""], "scenario", "actual value ''"),
    (["plan", "tiny", "central"], "planner", "did you mean 'centralized'?"),
    (["plan", "tiny", "decentralized.planner"], "planner", "actual value 'decentralized.planner'"),
    (["simulate", "tiny", "best"], "planner", "actual value 'best'"),
    (["compare", "tiny", "best"], "planner", "actual value 'best'"),
    (["compare", "tiny", "centralized:memory_gib=nan"], "centralized option.memory_gib", "expected a finite number"),
    (["plan", "tiny", "uncoordinated", "-o", "hops=1"], "uncoordinated option.hops", "expected no key"),
    (["plan", "tiny", "decentralized", "-o", "hop=1"], "decentralized option.hop", "did you mean 'hops'?"),
    (["plan", "tiny", "decentralized", "-o", "hops"], "--option", "actual value 'hops'"),
    (["plan", "tiny", "decentralized", "-o", "hops=two"], "decentralized option.hops", "a whole number"),
    (["plan", "tiny", "decentralized", "-o", "hops=2.5"], "decentralized option.hops", "a whole number"),
    (["plan", "tiny", "decentralized", "-o", "hops=9"], "decentralized option.hops", "less than or equal to 8"),
    (
        ["plan", "tiny", "decentralized", "-o", "gamma=0"],
        "decentralized option.gamma",
        "greater than 0, or 'theorem'",
    ),
    (["plan", "tiny", "decentralized", "-o", "share_tables=1"], "decentralized option.share_tables", "true or false"),
    (["plan", "tiny", "myopic", "-o", "mode=fast"], "myopic option.mode", "'rounded', 'continuous' or 'exhaustive'"),
    (["plan", "tiny", "centralized", "-o", "memory_gib=-1"], "centralized option.memory_gib", "greater than 0"),
    (["plan", "tiny", "centralized", "-o", "memory_gib=1e-9"], "centralized optimum", "actual estimate"),
    (["plan", "ring10", "centralized", "--set", "network.devices=30"], "centralized optimum", "PiB"),
    (
        ["plan", "ring10", "decentralized", "-o", "hops=4", *GEOMETRIC],
        "decentralized plan with hops = 4",
        "lower hops",
    ),
    (["plan", "ring10", "myopic", "-o", "mode=exhaustive", *GEOMETRIC], "exhaustive one-slot search", "estimate"),
    (["simulate", "tiny", "uncoordinated", "--episodes", "100000000"], "trace", "lower episodes"),
    (["simulate", "tiny", "uncoordinated", "--out", "no/such/folder.npz"], "--out", "an existing folder"),
    (["plan", "tiny", "uncoordinated", "--device", "gpu"], "--device", "actual value 'gpu'"),
    (["plan", "tiny", "uncoordinated", "--device", "cuda:99"], "--device", "actual value 'cuda:99'"),
    (["compare", "tiny", "--device", "meta"], "--device", "actual value 'meta'"),
    (
        ["plan", "tiny", "uncoordinated", "--dtype", "float16"],
        "--dtype",
        "float64 or float32, actual value 'float16'",
    ),
    (["simulate", "tiny", "uncoordinated", "--dtype", "64"], "--dtype", "actual value '64'"),
    (["compare", "tiny", "+"], "scheme '+'", "expected path=value, actual value ''"),
    (["compare", "tiny", " +agree=2"], "planner", "expected one of"),
    (["run", "tiny", "uncoordinated", "--out", "run", "--seed", "9" * 400], "seed", "expected less than 2^63"),
]


def check(code, printed, complaint, field, words):
    lines = complaint.splitlines()
    assert (code, printed, len(lines)) == (2, "", 1), complaint
    sentence = SENTENCE.fullmatch(lines[0])
    assert sentence is not None, complaint
    assert sentence["field"] == field
    assert words in lines[0]
    assert not [word for word in JARGON if word in lines[0]], complaint


@pytest.fixture
def refused(call, monkeypatch, tmp_path):
    """Run the command line here, in an empty folder, and check its refusal."""
    monkeypatch.chdir(tmp_path)

    def run(arguments, field, words):
        check(*call(*arguments), field, words)

    return run


def with_overrides(overrides):
    return ["scenario", "validate", "tiny", *(part for override in overrides for part in ("--set", override))]


@pytest.mark.parametrize(("overrides", "field", "words"), OVERRIDES)
def test_override(refused, overrides, field, words):
    refused(with_overrides(overrides), field, words)


@pytest.mark.parametrize(("content", "field", "words"), FILES)
def test_file(refused, tmp_path, content, field, words):
    for name, neighbour in NEIGHBOURS.items():
        (tmp_path / name).write_bytes(neighbour)
    (tmp_path / "scenario.toml").write_bytes(content)
    refused(["scenario", "validate", "scenario.toml"], field, words)


@pytest.mark.parametrize(("arguments", "field", "words"), COMMANDS)
def test_command(refused, arguments, field, words):
    refused(arguments, field, words)


def test_a_loop_of_links_is_no_run(call, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    assert call("report", loop) == (2, "", f"error: {loop}: expected the folder of a run, actual: nothing there\n")


def test_the_absence_of_cuda_is_told(refused, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    refused(
        ["plan", "tiny", "uncoordinated", "--device", "cuda"], "--device", "expected cpu (no CUDA device is present)"
    )
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    refused(["plan", "tiny", "uncoordinated", "--device", "cuda:2"], "--device", "expected cpu or cuda")


@pytest.mark.parametrize(
    "table", [OVERRIDES, *(pytest.param(table, marks=pytest.mark.slow) for table in (FILES, COMMANDS))]
)
def test_as_a_process_of_its_own(table, tmp_path):
    """The first row of each table, without any help from the test's own interpreter."""
    given, field, words = table[0]
    if table is FILES:
        (tmp_path / "scenario.toml").write_bytes(given)
        given = ["scenario", "validate", "scenario.toml"]
    arguments = with_overrides(given) if table is OVERRIDES else given
    start = [sys.executable, "-c", "from heliomesh.cli import main; main()"]
    done = subprocess.run(  # noqa: S603
        [*start, *arguments], cwd=tmp_path, capture_output=True, check=False, encoding="utf-8"
    )
    check(done.returncode, done.stdout, done.stderr, field, words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "tiny"], "planner"),
        (["forecast"], "forecast"),
        (["plan", "tiny", "uncoordinated", "--speed"], "--speed"),
        (["simulate", "tiny", "uncoordinated", "--episodes", "0"], "--episodes"),
        (["simulate", "tiny", "uncoordinated", "--episodes", "9" * 400], "--episodes"),
        (["compare", "tiny", "--train", "9" * 400], "--train"),
        (["study", "tune", "tiny", "turns", "--train", "9" * 400], "--train"),
        (["simulate", "tiny", "uncoordinated", "--seed", "many"], "--seed"),
        (["compare", "tiny", "--train", "much"], "--train"),
    ],
)
def test_usage(call, arguments, words):
    """What the command line's own parser refuses."""
    code, printed, complaint = call(*arguments)
    assert (code, printed, complaint.count("\n")) == (2, "", 1)
    assert complaint.startswith("error: ")
    assert words in complaint
    assert complaint.endswith("--help`.\n")


def test_the_tables_are_large_and_without_repetition():
    rows = [repr(given) for table in (OVERRIDES, FILES, COMMANDS) for given, _, _ in table]
    assert len(rows) >= 80
    assert len(set(rows)) == len(rows)


DEAF = ["--set", "link.path_loss=log-distance"]
ON_ALL = "note: no packet can arrive on any link: the noise drowns even the largest power on the best channel level; "


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "tiny", "uncoordinated"],
        ["simulate", "tiny", "uncoordinated", "--episodes", "1", "--json"],
        ["compare", "tiny", "uncoordinated", "--episodes", "1", "--json"],
        ["run", "tiny", "uncoordinated", "--out", "run", "--quiet"],
        ["export", "tiny", "uncoordinated", "--out", "tables"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_say_when_nothing_can_arrive(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, told = call(*arguments, *DEAF, "--set", "slots=2")
    assert code == 0
    assert told.count(ON_ALL + "lower link.noise_watt (now 0.3 W at most)") == 1


def test_validate_counts_the_links_on_which_nothing_can_arrive(call: Call) -> None:
    for noise, words in (("1e-14", ""), ("0.3", ON_ALL), ("[1, 1e-14, 1e-14, 1e-14, 1e-14]", "on 2 of 10 links")):
        code, printed, _ = call("scenario", "validate", "tiny", *DEAF, "--set", f"link.noise_watt={noise}")
        assert code == 0
        assert words in printed
        assert ("link.noise_watt" in printed) == bool(words)
