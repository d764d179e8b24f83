"""Many policies that learn side by side, of which the better ones are copied: population-based training."""

from parenv.population.population import Population as Population
from parenv.population.schedule import PopulationStatistics as PopulationStatistics
from parenv.population.schedule import Report as Report
from parenv.population.selection import Generational as Generational
from parenv.population.selection import LogUniform as LogUniform
from parenv.population.selection import Tournament as Tournament
from parenv.population.selection import Uniform as Uniform
from parenv.worker.member import Fitness as Fitness
from parenv.worker.member import Member as Member
